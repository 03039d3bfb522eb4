"""The Terraform modules: their files as data, and what Terraform plans of them.

Plans need Terraform 1.11 or newer on PATH and its providers, from its registry or from
~/.terraform.d/plugins. The modules' own tests (``*.tftest.hcl``) mock the clouds.
"""

import base64
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.modules import MODULES, ROOT, TERRAFORM, parsed, resources
from tests.waiting import WAIT_S

QUIET = {"CHECKPOINT_DISABLE": "1", "TF_CLI_CONFIG_FILE": os.devnull}
OF_GOOGLE = {"35.235.240.0/20", "35.191.0.0/16", "130.211.0.0/22"}
"""The ranges of IAP and of health checks."""
NOT_REACHED = "could not connect to|Failed to query available provider packages|Failed to install provider"
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())


def test_shell_scripts_have_no_known_mistake() -> None:
    scripts = sorted(path for path in (ROOT / "deploy").rglob("*.sh"))
    binary = Path(sys.executable).with_name("shellcheck")
    done = subprocess.run(
        [binary, "--external-sources", *scripts],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_no_machine_has_a_public_address() -> None:
    found = {(type_, name): given for module in MODULES for type_, name, given in resources(module)}
    assert {"resource.google_compute_instance", "resource.aws_subnet"} <= {type_ for type_, _ in found}
    for (type_, name), given in found.items():
        if type_.startswith("resource.google_compute_instance"):
            cards = given.get("network_interface", [])
            assert all("access_config" not in card for card in cards), (type_, name)
        assert "map_public_ip_on_launch" not in given, (type_, name)
        assert "associate_public_ip_address" not in str(given), (type_, name)


@pytest.mark.parametrize("cloud", ["google", "aws"])
def test_every_variable_of_a_cloud_is_described_and_checked(cloud: str) -> None:
    own, of_both = (parsed(TERRAFORM / cloud / name) for name in ("variables.tf", "pool_variables.tf"))
    for block in own["variable"] + of_both["variable"]:
        ((name, body),) = ((key, value) for key, value in block.items() if key != "__is_block__")
        assert len(body.get("description", "")) > 10, name
        is_free = body["type"] == "bool" or name == "redis_machine_type"
        assert is_free or body.get("validation"), f"{name} takes any value"


def test_both_clouds_have_the_same_variables_of_pools() -> None:
    # Copies, not links: an archive or a checkout on Windows turns a link into a text file.
    google, aws = ((TERRAFORM / cloud / "pool_variables.tf").read_text() for cloud in ("google", "aws"))
    assert google == aws


@dataclass(frozen=True)
class Planned:
    """What ``terraform test`` said of a cloud's module, and the plans that it made on the way."""

    report: str
    is_passed: bool
    plans: dict[str, list[dict[str, Any]]]

    def resources(self, run: str, type_: str) -> dict[str, dict[str, Any]]:
        """The resources of a type in the plan of a ``run``, by address."""
        return {
            change["address"]: change["change"]["after"]
            for change in self.plans[run]
            if change["type"] == type_ and change["change"]["after"]
        }


def terraform() -> str:
    found = shutil.which("terraform")
    if found is None:
        pytest.skip("Terraform is not installed: put version 1.11 or newer on PATH")
    shown = subprocess.run(
        [found, "version", "-json"], capture_output=True, timeout=WAIT_S, check=True
    ).stdout
    if tuple(map(int, json.loads(shown)["terraform_version"].split(".")[:2])) < (1, 11):
        pytest.skip("Terraform on PATH is older than 1.11, which can mock providers in plans")
    return found


@pytest.fixture(
    scope="module", params=[pytest.param(cloud, marks=pytest.mark.terraform) for cloud in ("google", "aws")]
)
def planned(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Planned:
    """Runs a cloud's own tests in a copy of the files that it reads."""
    program, folder = terraform(), tmp_path_factory.mktemp(request.param)
    modules = folder / "deploy" / "terraform"
    shutil.copytree(TERRAFORM, modules, ignore=shutil.ignore_patterns(".terraform*"))
    shutil.copy(ROOT / "deploy" / "redis-users.acl", folder / "deploy")
    shutil.copy(ROOT / "docker-compose.yml", folder)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [program, f"-chdir={modules / request.param}", *arguments],
            env=os.environ | QUIET, capture_output=True, text=True, timeout=5 * WAIT_S, check=False,
        )  # fmt: skip

    started = run("init", "-backend=false", "-input=false", "-no-color")
    if re.search(NOT_REACHED, started.stderr):
        pytest.skip("Terraform's registry cannot be reached: put its providers into ~/.terraform.d/plugins")
    assert started.returncode == 0, started.stdout + started.stderr
    checked = run("validate", "-no-color")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    done = run("test", "-json", "-verbose")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return Planned(
        "\n".join(line["@message"] + json.dumps(line.get("diagnostic", "")) for line in lines) + done.stderr,
        done.returncode == 0,
        {
            line["@testrun"]: line["test_plan"].get("resource_changes", [])
            for line in lines
            if "test_plan" in line
        },
    )


def test_the_modules_own_tests_pass(planned: Planned) -> None:
    assert planned.is_passed, planned.report


@pytest.mark.terraform
def test_files_are_formatted() -> None:
    done = subprocess.run(
        [terraform(), "fmt", "-check", "-recursive", "-diff", str(TERRAFORM)],
        capture_output=True, text=True, timeout=WAIT_S, check=False, env=os.environ | QUIET,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def scripts(planned: Planned, run: str) -> dict[str, str]:
    """The script of each machine in a plan, by its service."""
    found = [
        *(
            given["metadata"]["startup-script"]
            for type_ in ("google_compute_instance_template", "google_compute_instance")
            for given in planned.resources(run, type_).values()
        ),
        *(cloud_init(given["user_data"]) for given in planned.resources(run, "aws_launch_template").values()),
        *(cloud_init(given["user_data_base64"]) for given in planned.resources(run, "aws_instance").values()),
    ]
    return {constant(script, "service"): script for script in found}


def cloud_init(user_data: str) -> str:
    text = base64.b64decode(user_data).decode()
    assert text.startswith("#cloud-config\n")
    (file,) = yaml.safe_load(text)["write_files"]
    assert file["encoding"] == "gz+b64"
    return unpacked(file["content"])


def constant(script: str, name: str) -> str:
    found = re.search(rf"^{name}='(.*)'$", script, re.MULTILINE)
    assert found is not None, name
    return found[1]


def unpacked(text: str) -> str:
    return gzip.decompress(base64.b64decode(text)).decode()


def test_without_use_gpu_no_machine_has_a_gpu_or_its_driver(planned: Planned) -> None:
    for run, has_gpu in (("gpu", True), ("cpu", False)):
        templates = planned.resources(run, "google_compute_instance_template").values()
        instances = planned.resources(run, "aws_launch_template").values()
        assert any(given.get("guest_accelerator") for given in templates) == (has_gpu and bool(templates))
        assert any(given["instance_type"].startswith("g") for given in instances) == (
            has_gpu and bool(instances)
        )
        drivers = {service: constant(script, "driver") for service, script in scripts(planned, run).items()}
        assert {service for service, driver in drivers.items() if driver} == (
            {"worker-gpu", "finetune-gpu"} if has_gpu else set()
        )
        assert {"api", "redis", "worker-cpu", "finetune-cpu"} <= set(drivers)


def test_machines_run_the_compose_files_services_by_digest(planned: Planned) -> None:
    for service, script in scripts(planned, "gpu").items():
        if service == "redis":
            continue
        assert unpacked(constant(script, "compose_file")) == (ROOT / "docker-compose.yml").read_text()
        override = unpacked(constant(script, "override_file"))
        assert re.search(r"^    image: \S+@sha256:[0-9a-f]{64}$", override, re.MULTILINE), override
        assert f"\n  {service}:\n" in override
        files = {file.split("=")[0] for file in constant(script, "secret_files").split()}
        assert set(COMPOSE["services"][service]["secrets"]) <= files
        assert "KRONOS_REDIS_CA_FILE=/etc/kronos/redis.pem" in unpacked(constant(script, "environment_file"))


def test_firewalls_let_in_no_public_address(planned: Planned) -> None:
    for given in planned.resources("gpu", "google_compute_firewall").values():
        for source in map(ip_network, given["source_ranges"]):
            assert source.is_private or str(source) in OF_GOOGLE
    for given in planned.resources("gpu", "aws_vpc_security_group_ingress_rule").values():
        assert given.get("cidr_ipv4") is None


def test_each_role_reads_its_own_secrets(planned: Planned) -> None:
    readers = planned.resources("gpu", "google_secret_manager_secret_iam_member")
    pairs = {re.findall(r'"(.*)"', address)[0] for address in readers}
    assert not {pair for pair in pairs if pair.startswith("redis-") and not pair.endswith(" redis")}
    assert "api-keys worker" not in pairs
    for script in scripts(planned, "gpu").values():
        assert "Passw0rd" not in script


def test_machines_mount_the_folders_that_their_services_use(planned: Planned) -> None:
    for service, script in scripts(planned, "gpu").items():
        volumes = " ".join(COMPOSE["services"][service]["volumes"]) if service != "redis" else ""
        used = [
            folder for folder, part in (("models", "registered:"), ("data", "-data}:")) if part in volumes
        ]
        assert constant(script, "folders").split() == used, service


def test_each_role_may_do_what_its_script_does_and_no_more(planned: Planned) -> None:
    def granted(name: str) -> dict[str, str]:
        members = planned.resources("gpu", f"google_{name}_iam_member").items()
        return {re.findall(r'"(.*)"', key)[0]: given["role"] for key, given in members if '["' in key}

    if not (images := granted("artifact_registry_repository")):
        return  # AWS's policies are known after apply
    roles = {service: service.split("-")[0] for service in scripts(planned, "gpu")}
    assert images == dict.fromkeys(set(roles.values()) - {"redis"}, "roles/artifactregistry.reader")
    writers = {"models finetune", "data api"}
    assert granted("storage_bucket") == {
        pair: "roles/storage.objectUser" if pair in writers else "roles/storage.objectViewer"
        for service, script in scripts(planned, "gpu").items()
        for pair in (f"{folder} {roles[service]}" for folder in constant(script, "folders").split())
    }
    of_redis = {"redis-users redis", "redis-tls-key redis"}
    assert set(granted("secret_manager_secret")) == of_redis | {
        f"{file.split('=')[1]} {roles[service]}"
        for service, script in scripts(planned, "gpu").items()
        for file in constant(script, "secret_files").split()
    }


def test_the_network_lets_in_what_services_listen_on(planned: Planned) -> None:
    google = planned.resources("gpu", "google_compute_firewall").values()
    aws = planned.resources("gpu", "aws_vpc_security_group_ingress_rule").values()
    ports = {int(port) for given in google for port in given["allow"][0]["ports"]}
    ports |= {given["from_port"] for given in aws}
    assert ports == {6379, 8000, 22 if google else 2049}
    for given in planned.resources("gpu", "google_compute_forwarding_rule").values():
        assert given["ports"] == ["8000"]


def test_rendered_scripts_are_programs_of_bash(planned: Planned, tmp_path: Path) -> None:
    for service, script in scripts(planned, "gpu").items():
        (tmp_path / service).write_text(script)
        subprocess.run(["bash", "-n", tmp_path / service], check=True, timeout=WAIT_S)
    assert {path.name for path in tmp_path.iterdir()} == {
        "api",
        "redis",
        "worker-cpu",
        "worker-gpu",
        "finetune-cpu",
        "finetune-gpu",
    }


def test_pools_are_scaled_by_the_metric_that_the_api_reports(planned: Planned) -> None:
    queues = {"cpu", "gpu", "cpu.finetune", "gpu.finetune"}
    google = planned.resources("gpu", "google_compute_autoscaler").values()
    for given in google:
        (metric,) = given["autoscaling_policy"][0]["metric"]
        assert metric["name"] == constant(scripts(planned, "gpu")["api"], "load_metric")
        filters = dict(part.split(" = ") for part in metric["filter"].split(" AND "))
        assert filters["resource.type"] == '"global"'
        queue = filters["metric.labels.queue"].strip('"')
        assert (metric["single_instance_assignment"] == 1) == queue.endswith(".finetune")
        queues.discard(queue)
    for given in planned.resources("gpu", "aws_autoscaling_policy").values():
        (specification,) = given["target_tracking_configuration"][0]["customized_metric_specification"]
        (metric,) = next(given["metric_stat"] for given in specification["metrics"] if given["id"] == "jobs")[
            0
        ]["metric"]
        assert (metric["namespace"], metric["metric_name"]) == ("kronos", "queue_jobs")
        queue = metric["dimensions"][0]["value"]
        assert (given["target_tracking_configuration"][0]["target_value"] == 1) == queue.endswith(".finetune")
        queues.discard(queue)
    assert not queues
