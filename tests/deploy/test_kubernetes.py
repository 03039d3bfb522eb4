"""The manifests in deploy/kubernetes: valid, complete, confined, and scaled by the workers' lists."""

import json
import re
import shutil
import sqlite3
import subprocess
import tempfile
from base64 import b64decode
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from kronos_cli.main import cli
from kronos_client.redis.queues import NO_PREFIX, ROLE_QUEUES, large_key, list_keys
from kronos_model.engine.native.compiling import TIMEOUT_S
from tests.all_settings import AllSettings
from tests.deploy.test_monitoring import served

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
DATA = ROOT / "tests" / "data" / "kubernetes"
KUBERNETES = DEPLOY / "kubernetes"
MANIFESTS = sorted(path for path in KUBERNETES.rglob("*.yaml") if path.stem != "kustomization")
OBJECTS = [
    pytest.param(document, id=f"{path.stem}-{document['kind']}-{document['metadata']['name']}")
    for path in MANIFESTS
    for document in yaml.safe_load_all(path.read_text())
]
WORKERS = {
    "worker-cpu": "cpu",
    "worker-gpu": "gpu",
    "finetune-cpu": "cpu.finetune",
    "finetune-gpu": "gpu.finetune",
}


@cache
def schema_of(kind: str) -> dict[str, Any]:
    own = json.loads((DATA / "keda.json").read_text())
    if kind in own["definitions"]:
        return {**own, "$ref": f"#/definitions/{kind}"}
    kubernetes = json.loads((DATA / "schemas.json").read_text())
    return {"$ref": f"#/definitions/{kubernetes['kinds'][kind]}", "definitions": kubernetes["definitions"]}


@pytest.mark.parametrize("document", OBJECTS)
def test_manifests_follow_their_schemas(document: dict[str, Any]) -> None:
    jsonschema.Draft7Validator(schema_of(document["kind"])).validate(document)


def named(kind: str) -> dict[str, dict[str, Any]]:
    documents = [one.values[0] for one in OBJECTS]
    return {one["metadata"]["name"]: one for one in documents if one["kind"] == kind}


def pod_of(name: str) -> dict[str, Any]:
    return dict(named("Deployment")[name]["spec"]["template"]["spec"])


@pytest.mark.parametrize("name", [*WORKERS, "api"])
def test_pods_are_confined(name: str) -> None:
    pod = pod_of(name)
    (container,) = pod["containers"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert f"USER {pod['securityContext']['runAsUser']}:" in (ROOT / "Dockerfile").read_text()
    mounts, volumes = ({one["name"] for one in part} for part in (container["volumeMounts"], pod["volumes"]))
    assert mounts == volumes
    assert "memory" in container["resources"]["limits"]


@pytest.mark.parametrize("name", [*WORKERS, "api"])
def test_pods_are_told_settings_that_there_are_and_secrets_by_file(name: str) -> None:
    pod = pod_of(name)
    (container,) = pod["containers"]
    maps = named("ConfigMap")
    variables = {one["name"]: one["value"] for one in container.get("env", [])}
    for source in container["envFrom"]:
        variables |= maps[source["configMapRef"]["name"]]["data"]
    known = {f"KRONOS_{field.upper()}" for field in AllSettings.model_fields}
    assert {variable.removesuffix("_FILE") for variable in variables} <= known
    (secret,) = [volume["secret"] for volume in pod["volumes"] if "secret" in volume]
    files = {f"/run/secrets/kronos/{item['path']}" for item in secret["items"]}
    assert {value for value in variables.values() if value.startswith("/run/secrets/")} == files
    assert not {"KRONOS_REDIS_URL", "KRONOS_API_KEYS", "KRONOS_FLOWER_PASSWORD"} & variables.keys()
    text = (DEPLOY / "kubernetes/kustomization.yaml").read_text()
    assert all(f"--from-file={item['key']}" in text for item in secret["items"])


@pytest.mark.parametrize("name", WORKERS)
def test_workers_are_asked_for_their_health_by_a_command_that_exists(name: str) -> None:
    (container,) = pod_of(name)["containers"]
    assert container["args"][0] in cli.commands
    assert container["args"][1:] in ([], ["--role", "finetune"])
    assert (len(container["args"]) > 1) == name.startswith("finetune")
    for probe in ("startupProbe", "readinessProbe"):
        *_, module, command = container[probe]["exec"]["command"]
        assert (module, command in cli.commands) == ("kronos_cli", True)
    # The model is downloaded, and kernels are compiled where the image has none for the CPU.
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= TIMEOUT_S + 300
    # Redis that is away must not end workers that compute.
    assert "livenessProbe" not in container


def test_what_ends_is_given_the_time_it_needs() -> None:
    settings = AllSettings.model_construct()
    for name in WORKERS:
        least_s = settings.finetune_grace_s + 30 if name.startswith("finetune") else 600
        assert pod_of(name)["terminationGracePeriodSeconds"] >= least_s
    assert pod_of("api")["terminationGracePeriodSeconds"] > settings.api_wait_s + 5


def test_every_deployment_has_a_disruption_budget_and_each_selector_finds_its_pods() -> None:
    budgets = named("PodDisruptionBudget")
    for name, deployment in named("Deployment").items():
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        for selector in (deployment["spec"]["selector"], budgets[name]["spec"]["selector"]):
            assert selector["matchLabels"].items() <= labels.items()
    assert budgets.keys() == named("Deployment").keys()
    assert named("Service")["api"]["spec"]["selector"] == {"app.kubernetes.io/name": "api"}
    controllers = [*named("Deployment").values(), *named("StatefulSet").values()]
    pods = [one["spec"]["template"]["metadata"]["labels"] for one in controllers]
    for policy in named("NetworkPolicy").values():
        wanted = policy["spec"]["podSelector"]["matchLabels"].items()
        assert any(wanted <= labels.items() for labels in pods)


@pytest.mark.parametrize(("name", "queue"), WORKERS.items())
def test_pools_are_scaled_by_all_lists_of_their_queue(name: str, queue: str) -> None:
    spec = named("ScaledObject")[name]["spec"]
    assert queue in NO_PREFIX.all
    assert spec["scaleTargetRef"]["name"] in named("Deployment")
    triggers = [trigger for trigger in spec["triggers"] if trigger["type"] == "redis"]
    lists = list_keys(queue)
    lists += [large_key(key) for key in lists if queue in ROLE_QUEUES["forecast"]]
    assert [trigger["metadata"]["listName"] for trigger in triggers] == lists
    formula = spec["advanced"]["scalingModifiers"]["formula"]
    assert all(trigger["name"] in formula.split() for trigger in triggers)
    assert {trigger["authenticationRef"]["name"] for trigger in triggers} == {"kronos-redis"}
    # With no GPU worker ready, senders choose the CPU: nothing would wake a pool of none.
    assert spec["minReplicaCount"] == (0 if name == "finetune-cpu" else 1)


@pytest.mark.parametrize(("name", "queue"), WORKERS.items())
def test_pools_are_scaled_by_what_the_api_tells_of_their_own_queue(name: str, queue: str) -> None:
    triggers = [one for one in named("ScaledObject")[name]["spec"]["triggers"] if one["type"] != "redis"]
    names = {"feeds"} if queue in ROLE_QUEUES["forecast"] else {"due", "training", "workers"}
    assert {trigger["name"] for trigger in triggers} == names
    for trigger in triggers:
        place = trigger["metadata"]
        metric, label = re.fullmatch(r'(\w+)\{queue="([^"]+)"\}', place["valueLocation"]).groups()  # type: ignore[union-attr]
        metrics = {
            "training": "kronos_jobs_training",
            "workers": "kronos_workers",
            "due": "kronos_queue_due_jobs",
            "feeds": "kronos_queue_feed_jobs",
        }
        assert metric == metrics[trigger["name"]]
        assert label == queue
        assert metric in served()
        (port,) = named("Service")["api"]["spec"]["ports"]
        assert place["url"] == f"http://api.kronos.svc:{port['port']}/metrics"
        assert (place["format"], place["authMode"]) == ("prometheus", "bearer")
        assert trigger["authenticationRef"] == {"name": "kronos-api"}
    (ingress,) = named("NetworkPolicy")["kronos-api"]["spec"]["ingress"]
    keda = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "keda"}}}
    assert keda in ingress["from"]


def test_scalers_are_given_a_password_and_a_key_that_the_secret_holds() -> None:
    text = (DEPLOY / "kubernetes/kustomization.yaml").read_text()
    given = {}
    for name, one in named("TriggerAuthentication").items():
        (target,) = one["spec"]["secretTargetRef"]
        assert target["name"] == "kronos"
        assert f"--from-file={target['key']}" in text
        given[name] = (target["parameter"], target["key"])
    assert given == {"kronos-redis": ("password", "redis_password"), "kronos-api": ("token", "metrics_key")}


def size_wanted(pool: str, **figures: int) -> int:
    """What a pool's formula makes of these; whatever is not named is 0. SQL reads it all but as KEDA does."""
    spec = named("ScaledObject")[pool]["spec"]
    formula = spec["advanced"]["scalingModifiers"]["formula"].replace("&&", "AND")
    if "?" in formula:
        formula = "CASE WHEN {} THEN {} ELSE {} END".format(*re.split(r" \? | : ", formula))
    names = [trigger["name"] for trigger in spec["triggers"]]
    assert figures.keys() <= set(names) <= set(re.findall(r"[a-z_]+", formula))
    columns = ", ".join(f"{figures.get(name, 0)} AS {name}" for name in names)
    with closing(sqlite3.connect(":memory:")) as database:
        (size,) = database.execute(f"SELECT {formula} FROM (SELECT {columns})").fetchone()
    return int(size)


@pytest.mark.parametrize("pool", WORKERS)
def test_all_that_waits_asks_for_pods(pool: str) -> None:
    assert size_wanted(pool) == 0
    assert size_wanted(pool, high=1, normal=2, low=4, lowest=8) == 15
    if pool.startswith("worker"):
        large = {"large_high": 1, "large_normal": 2, "large_low": 4, "large_lowest": 8}
        assert size_wanted(pool, normal=16, feeds=32, **large) == 63


@pytest.mark.parametrize("pool", ["finetune-cpu", "finetune-gpu"])
def test_no_pool_shrinks_under_training(pool: str) -> None:
    assert size_wanted(pool, workers=2, training=1) == 2, "the pod that goes might be the one that trains"
    assert size_wanted(pool, workers=2, training=1, normal=1) == 2, "a worker that is there takes it"
    assert size_wanted(pool, workers=2, training=2, normal=1) == 3
    assert size_wanted(pool, workers=0, training=0, low=1) == 1
    assert size_wanted(pool, due=1) == 1
    assert size_wanted(pool, workers=2, training=1, due=2) == 3
    assert size_wanted(pool, workers=2, training=0) == 0
    # A job that was just taken shows in the figures within that time.
    spec = named("ScaledObject")[pool]["spec"]
    behaviour = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert min(spec["cooldownPeriod"], behaviour["scaleDown"]["stabilizationWindowSeconds"]) >= 600


def test_every_manifest_is_applied() -> None:
    applied = set()
    for path in KUBERNETES.rglob("kustomization.yaml"):
        applied |= {(path.parent / name).resolve() for name in yaml.safe_load(path.read_text())["resources"]}
    assert applied == {*MANIFESTS, KUBERNETES / "base"}


@cache
def rendered(folder: str) -> list[dict[str, Any]]:
    """What `kubectl apply -k` sends for a folder of deploy/kubernetes, with passwords made for it."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    with tempfile.TemporaryDirectory() as copy:
        shutil.copytree(KUBERNETES, copy, dirs_exist_ok=True, ignore=shutil.ignore_patterns("secrets"))
        subprocess.run([DEPLOY / "make-secrets.sh", f"{copy}/try/secrets"], capture_output=True, check=True)
        command = ["kubectl", "kustomize", f"{copy}/{folder}"]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=60)
    return list(yaml.safe_load_all(done.stdout))


@pytest.mark.parametrize("folder", [".", "try"])
def test_what_is_applied_is_valid_and_complete(folder: str) -> None:
    objects = rendered(folder)
    for one in objects:
        jsonschema.Draft7Validator(schema_of(one["kind"])).validate(one)
    assert {one["metadata"].get("namespace", "kronos") for one in objects} == {"kronos"}
    names = {(one["kind"], one["metadata"]["name"]) for one in objects}
    for one in objects:
        if one["kind"] in ("Deployment", "StatefulSet"):
            pod = one["spec"]["template"]["spec"]
            (container,) = pod["containers"]
            assert re.search(r":[\w.-]+$", container["image"])
            claims = [
                one["persistentVolumeClaim"] for one in pod["volumes"] if "persistentVolumeClaim" in one
            ]
            used = {("PersistentVolumeClaim", claim["claimName"]) for claim in claims}
            used |= {("ConfigMap", source["configMapRef"]["name"]) for source in container.get("envFrom", [])}
            assert used <= names


def test_a_cluster_for_trying_needs_nothing_else() -> None:
    objects = {(one["kind"], one["metadata"]["name"]): one for one in rendered("try")}
    assert not {kind for kind, _ in objects} & {"ScaledObject", "TriggerAuthentication"}, "no KEDA"
    assert "nvidia.com/gpu" not in str(objects)
    assert {("Namespace", "kronos"), ("Service", "redis"), ("Deployment", "api")} <= objects.keys()
    secret = {key: b64decode(value).decode() for key, value in objects["Secret", "kronos"]["data"].items()}
    assert secret["redis_url"] == f"redis://:{secret['redis_password']}@redis:6379/0"
    pods = [one["spec"]["template"]["spec"] for one in objects.values() if "template" in one.get("spec", {})]
    mounted = [volume["secret"]["items"] for pod in pods for volume in pod["volumes"] if "secret" in volume]
    assert {item["key"] for items in mounted for item in items} <= secret.keys()
    (container,) = objects["StatefulSet", "redis"]["spec"]["template"]["spec"]["containers"]
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["redis"]
    for line in ("appendonly yes", "maxmemory-policy noeviction", "requirepass $(cat "):
        assert line in container["command"][-1]
    assert container["image"] == compose["image"]
    assert container["securityContext"] == pod_of("api")["containers"][0]["securityContext"]


def test_a_job_on_a_gpu_runs_where_there_is_one() -> None:
    for name in WORKERS:
        (container,) = pod_of(name)["containers"]
        is_gpu = name.endswith("gpu")
        assert ("nvidia.com/gpu" in container["resources"]["limits"]) == is_gpu
        assert container["image"] == ("kronos-worker-cuda" if is_gpu else "kronos-worker")
        assert {"name": "KRONOS_DEVICE", "value": "cuda" if is_gpu else "cpu"} in container["env"]
        tainted = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
        assert pod_of(name).get("tolerations", []) == (tainted if is_gpu else [])
