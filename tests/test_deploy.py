"""What operators get in deploy/: alerts and dashboard ask for what is served, manifests are valid."""

import json
import re
import shutil
import sqlite3
import subprocess
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from prometheus_client import CollectorRegistry

from api_stub.routes.metrics import HttpMetrics
from kronos_cli.main import cli
from kronos_client.contract.errors import ErrorCode
from kronos_client.redis.queues import NO_PREFIX, ROLE_QUEUES, list_keys
from tests.all_settings import AllSettings
from worker.monitoring.metrics import FinetuneMetrics, WorkerMetrics

ROOT = Path(__file__).resolve().parents[1]
DEPLOY = ROOT / "deploy"
DATA = ROOT / "tests" / "data" / "kubernetes"
ALERTS = yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text())
DASHBOARD = json.loads((DEPLOY / "grafana/dashboard.json").read_text())
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
MANIFESTS = sorted(path for path in (DEPLOY / "kubernetes").glob("*.yaml") if path.stem != "kustomization")
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
JOBS = ("kronos-forecast", "kronos-finetune", "kronos-gpu", "kronos-api")
# Of NVIDIA's exporter, with its default counters.
GPU_METRICS = ("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_XID_ERRORS")

# Words of an expression that are no names of metrics.
NO_METRICS = {
    "by", "on", "and", "or", "unless", "sum", "max", "min", "rate", "increase", "histogram_quantile", "le",
    "label_values", "vector", "ignoring", "group_left", "avg", "count", "bool", "without", "absent",
    "label_replace",
}  # fmt: skip
STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
LABELS = re.compile(r"\{[^}]*\}|\b(?:by|on|without|ignoring)\s*\([^)]*\)")


@cache
def served() -> dict[str, set[str]]:
    """The labels that each sample has, by its name, as workers and the API serve them."""
    registries: list[CollectorRegistry] = [
        WorkerMetrics(dict, lambda: 0).registry,
        FinetuneMetrics(lambda: None).registry,
        HttpMetrics().registry,
    ]
    suffixes = {
        "counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count"), "unknown": ("",),
    }  # fmt: skip
    names: dict[str, set[str]] = {"up": set(), **{name: {"gpu", "Hostname"} for name in GPU_METRICS}}
    for registry in registries:
        declared = {
            name: set(getattr(collector, "_labelnames", ()))
            for collector, given in registry._collector_to_names.items()
            for name in given
        }
        for family in registry.collect():
            labels = declared.get(family.name, set()) | {
                label for sample in family.samples for label in sample.labels
            }
            labels |= set(getattr(family, "_labelnames", ()))
            for suffix in suffixes[family.type]:
                own = {"le"} if suffix == "_bucket" else set()
                names[family.name + suffix] = labels | own | {"job", "instance"}
    return names


def asked_for(expression: str) -> set[str]:
    """The metrics that an expression of PromQL names."""
    bare = LABELS.sub(" ", STRING.sub('""', expression))
    words = re.findall(r"(?<![\w.$])[a-zA-Z_]\w*", re.sub(r"\[[^\]]*\]", " ", bare))
    return set(words) - NO_METRICS


EXPRESSIONS = [
    *(pytest.param(rule["expr"], id=rule["alert"]) for rule in RULES),
    *(
        pytest.param(target["expr"], id=f"{panel['title']} {target['refId']}")
        for panel in PANELS
        for target in panel["targets"]
    ),
    *(
        pytest.param(variable["definition"], id=variable["name"])
        for variable in DASHBOARD["templating"]["list"]
        if "definition" in variable
    ),
]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_metric_that_is_asked_for_is_served(expression: str) -> None:
    names = asked_for(expression) - {"instance"}
    assert names
    assert names <= served().keys()


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_label_that_is_matched_is_one_that_some_metric_has(expression: str) -> None:
    text = STRING.sub('""', expression)
    matched = set(re.findall(r"[{,]\s*(\w+)\s*[=!]~?\s*\"\"", text))
    grouped = {
        label.strip()
        for group in re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", text)
        for label in group.split(",")
        if label.strip()  # on () matches by none
    }
    known = set().union(*(served()[name] for name in asked_for(expression) - {"instance"})) | {
        "job",
        "instance",
    }
    assert matched | grouped <= known


def test_what_finds_metrics_would_find_one_that_is_not_there() -> None:
    expression = 'sum by (queue) (rate(kronos_gone_total{queue="cpu"}[5m])) > 0 and on (queue) kronos_slots'
    assert asked_for(expression) == {"kronos_gone_total", "kronos_slots"}
    assert "kronos_gone_total" not in served()
    assert served()["kronos_job_wait_seconds_bucket"] >= {"queue", "priority", "le"}


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_what_every_replica_of_the_api_tells_of_redis_counts_once(expression: str) -> None:
    bare = re.sub(r"\{[^}]*\}", "", STRING.sub('""', expression))
    of_redis = r"kronos_(?:queue_jobs|workers|workers_ready|jobs_training|redis_up)\b"
    taken_once = rf"(?:(?:max|min)(?: by \([^)]*\) )?|absent)\({of_redis}"
    assert len(re.findall(of_redis, bare)) == len(re.findall(taken_once, bare))


def test_what_finds_double_counting_would_find_it() -> None:
    for expression in ("sum by (queue) (kronos_queue_jobs)", 'sum(kronos_workers{queue="cpu"})'):
        with pytest.raises(AssertionError):
            test_what_every_replica_of_the_api_tells_of_redis_counts_once(expression)


def test_alerts_name_codes_and_jobs_that_there_are() -> None:
    for rule in RULES:
        for codes in re.findall(r'\bcode=~?"([^"]*)"', rule["expr"]):
            for code in codes.split("|"):
                assert any(re.fullmatch(code, known) for known in ErrorCode), code
        assert rule["annotations"].keys() == {"summary", "description"}
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
    config = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())
    assert tuple(one["job_name"] for one in config["scrape_configs"]) == JOBS
    assert config["rule_files"] == ["alerts.yml"]
    # A file that holds one key, whatever becomes of those of people.
    assert config["scrape_configs"][-1]["authorization"] == {"credentials_file": "/run/secrets/metrics_key"}


def test_promtool_finds_nothing_wrong() -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    for command in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]):
        done = subprocess.run(
            ["promtool", *command], cwd=DEPLOY / "prometheus", capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_panels_lie_side_by_side_and_have_names_of_their_own() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert len({panel["title"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


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


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("Deployment", ("spec", "template", "spec", "terminationGracePeriod"), 5),
        ("Deployment", ("spec", "template", "spec", "terminationGracePeriodSeconds"), "5"),
        ("ScaledObject", ("spec", "minReplicas"), 1),
        ("ScaledObject", ("spec", "triggers"), [{"type": "redis", "metadata": {"url": "http://a"}}]),
        ("ScaledObject", ("spec", "triggers"), [{"type": "metrics-api", "metadata": {"listName": "a"}}]),
        ("PodDisruptionBudget", ("spec", "selectors"), {}),
        ("NetworkPolicy", ("spec", "egres"), []),
    ],
)
def test_the_schemas_refuse_what_is_wrong(kind: str, path: tuple[str, ...], value: Any) -> None:
    document = json.loads(json.dumps(next(one.values[0] for one in OBJECTS if one.values[0]["kind"] == kind)))
    place = document
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft7Validator(schema_of(kind)).validate(document)


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
    pods = [one["spec"]["template"]["metadata"]["labels"] for one in named("Deployment").values()]
    for policy in named("NetworkPolicy").values():
        wanted = policy["spec"]["podSelector"]["matchLabels"].items()
        assert any(wanted <= labels.items() for labels in pods)


@pytest.mark.parametrize(("name", "queue"), WORKERS.items())
def test_pools_are_scaled_by_all_lists_of_their_queue(name: str, queue: str) -> None:
    spec = named("ScaledObject")[name]["spec"]
    assert queue in NO_PREFIX.all
    assert spec["scaleTargetRef"]["name"] in named("Deployment")
    triggers = [trigger for trigger in spec["triggers"] if trigger["type"] == "redis"]
    assert [trigger["metadata"]["listName"] for trigger in triggers] == list_keys(queue)
    assert {trigger["authenticationRef"]["name"] for trigger in triggers} == {"kronos-redis"}
    # With no GPU worker ready, senders choose the CPU: nothing would wake a pool of none.
    assert spec["minReplicaCount"] == (0 if name == "finetune-cpu" else 1)


@pytest.mark.parametrize(("name", "queue"), WORKERS.items())
def test_pools_that_train_are_scaled_by_what_the_api_tells_of_their_own_queue(name: str, queue: str) -> None:
    triggers = [one for one in named("ScaledObject")[name]["spec"]["triggers"] if one["type"] != "redis"]
    assert bool(triggers) == (queue in ROLE_QUEUES["finetune"])
    for trigger in triggers:
        place = trigger["metadata"]
        metric, label = re.fullmatch(r'(\w+)\{queue="([^"]+)"\}', place["valueLocation"]).groups()  # type: ignore[union-attr]
        assert metric == {"training": "kronos_jobs_training", "workers": "kronos_workers"}[trigger["name"]]
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
    assert figures.keys() <= set(names) <= set(re.findall(r"[a-z]+", formula))
    columns = ", ".join(f"{figures.get(name, 0)} AS {name}" for name in names)
    with closing(sqlite3.connect(":memory:")) as database:
        (size,) = database.execute(f"SELECT {formula} FROM (SELECT {columns})").fetchone()
    return int(size)


@pytest.mark.parametrize("pool", WORKERS)
def test_all_that_waits_asks_for_pods(pool: str) -> None:
    assert size_wanted(pool) == 0
    assert size_wanted(pool, high=1, normal=2, low=4, lowest=8) == 15


@pytest.mark.parametrize("pool", ["finetune-cpu", "finetune-gpu"])
def test_no_pool_shrinks_under_training(pool: str) -> None:
    assert size_wanted(pool, workers=2, training=1) == 2, "the pod that goes might be the one that trains"
    assert size_wanted(pool, workers=2, training=1, normal=1) == 2, "a worker that is there takes it"
    assert size_wanted(pool, workers=2, training=2, normal=1) == 3
    assert size_wanted(pool, workers=0, training=0, low=1) == 1
    assert size_wanted(pool, workers=2, training=0) == 0
    # A job that was just taken shows in the figures within that time.
    spec = named("ScaledObject")[pool]["spec"]
    behaviour = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert min(spec["cooldownPeriod"], behaviour["scaleDown"]["stabilizationWindowSeconds"]) >= 600


def test_the_whole_folder_is_applied() -> None:
    kustomization = yaml.safe_load((DEPLOY / "kubernetes/kustomization.yaml").read_text())
    assert sorted(kustomization["resources"]) == [path.name for path in MANIFESTS]
    images = {one["name"] for one in kustomization["images"]}
    assert images == {
        container["image"]
        for deployment in named("Deployment").values()
        for container in deployment["spec"]["template"]["spec"]["containers"]
    }


def test_a_job_on_a_gpu_runs_where_there_is_one() -> None:
    for name in WORKERS:
        (container,) = pod_of(name)["containers"]
        is_gpu = name.endswith("gpu")
        assert ("nvidia.com/gpu" in container["resources"]["limits"]) == is_gpu
        assert container["image"] == ("kronos-worker-cuda" if is_gpu else "kronos-worker")
        assert {"name": "KRONOS_DEVICE", "value": "cuda" if is_gpu else "cpu"} in container["env"]
        tainted = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
        assert pod_of(name).get("tolerations", []) == (tainted if is_gpu else [])
