"""The script that a machine of a pool runs at each boot, with stand-ins for what would change a machine."""

import base64
import gzip
import os
import re
import subprocess
from pathlib import Path
from typing import Final

import pytest
import yaml
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from api_stub.routes.metrics import HttpMetrics
from tests.deploy.modules import ROOT, TERRAFORM
from tests.deploy.stand_ins import StandIns

IMAGE: Final = "registry.example.org/pool/worker@sha256:" + "0" * 64
PROGRAMS: Final = (
    "apt-get", "aws", "blkid", "chown", "curl", "docker", "gcsfuse", "gpg", "mkfs.ext4", "mount",
    "mountpoint", "nvidia-ctk", "nvidia-smi", "reboot", "sleep", "snap", "sysctl", "systemctl", "uname",
)  # fmt: skip


class Machine(StandIns):
    """A folder in place of a machine's root, and what was called on it."""

    def __init__(self, folder: Path, cloud: str = "google") -> None:
        super().__init__(folder, *PROGRAMS)
        self.root, self._cloud, self._script = folder / "root", cloud, folder / "start"
        (self.root / "opt" / "kronos" / "secrets").mkdir(parents=True)
        self.reply("uname", f"6.8.0-1020-{'gcp' if cloud == 'google' else 'aws'}")
        self.reply("aws", "s3cret")
        self.fail("mountpoint", "blkid", "nvidia-smi", "sleep")

    def boot(self, service: str, verb: str = "start", driver: str = "") -> subprocess.CompletedProcess[str]:
        """Run the script with the verb that its unit uses at each boot."""
        override = (
            (TERRAFORM / "machine" / "override.yml")
            .read_text()
            .replace("${service}", service)
            .replace("${image}", IMAGE)
            .replace("${ports}", "ports: !override ['8000:8000']" if service == "api" else "")
        )
        settings = {
            "service": service, "driver": driver, "registry": IMAGE, "project": "my-project",
            "name_prefix": "kronos", "load_metric": "custom/queue_jobs", "region": "eu-west-1",
            "file_system": "fs-1.example.org", "folders": "models data",
            "secret_files": "redis_url=worker-redis-url metrics_key=metrics-key",
            "redis_disk": os.devnull, "redis_certificate": packed("CERTIFICATE"),
            "override_file": packed(override),
            "compose_file": packed((ROOT / "docker-compose.yml").read_text()),
            "environment_file": packed("KRONOS_DRAIN_TIMEOUT_S=15\n"),
        }  # fmt: skip
        parts = [
            "#!/usr/bin/env bash",
            *(f"{key}='{value}'" for key, value in settings.items()),
            *((TERRAFORM / "machine" / name).read_text() for name in (f"{self._cloud}.sh", "start.sh")),
        ]
        self._script.write_text("\n".join(parts))
        return self.run(self._script, verb, ROOT=str(self.root))

    def read(self, path: str) -> str:
        return (self.root / path).read_text()


def packed(text: str) -> str:
    return base64.b64encode(gzip.compress(text.encode())).decode()


@pytest.fixture(params=["google", "aws"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Machine:
    return Machine(tmp_path, request.param)


def test_a_boot_leaves_the_work_to_a_unit_that_tries_again(machine: Machine) -> None:
    done = machine.boot("worker-cpu", "boot")
    assert done.returncode == 0, done.stderr
    assert machine.calls.splitlines()[-1] == "systemctl restart --no-block kronos-start.service"
    unit = machine.read("etc/systemd/system/kronos-start.service")
    assert "ExecStart=/opt/kronos/start start\n" in unit
    assert "Restart=on-failure" in unit
    assert "service='worker-cpu'" in machine.read("opt/kronos/start")


def test_a_gpu_machine_installs_its_driver_restarts_once_and_then_runs_its_service(machine: Machine) -> None:
    first = machine.boot("worker-gpu", driver="580")
    assert first.returncode == 0, first.stderr
    assert "linux-modules-nvidia-580-server-" in machine.calls
    assert machine.calls.splitlines()[-1] == "reboot "
    assert "docker" not in machine.calls
    machine.reply("nvidia-smi", "580.95.05\n")
    second = machine.boot("worker-gpu", driver="580")
    assert second.returncode == 0, second.stderr
    assert "reboot" not in machine.calls
    assert "nvidia-ctk runtime configure --runtime=docker" in machine.calls
    assert "systemctl restart kronos.service" in machine.calls
    third = machine.boot("worker-gpu", driver="580")
    assert third.returncode == 0, third.stderr
    assert "docker.io" not in machine.calls
    assert "systemctl restart kronos.service" in machine.calls


@pytest.mark.parametrize("shown", ["", "470.82.01\n"])
def test_a_driver_that_does_not_come_up_ends_in_an_error_and_not_in_endless_restarts(
    tmp_path: Path, shown: str
) -> None:
    machine = Machine(tmp_path)
    machine.reply("nvidia-smi", shown)
    for _ in range(2):
        assert machine.boot("worker-gpu", driver="580").returncode == 0
        assert machine.calls.splitlines()[-1] == "reboot "
    failed = machine.boot("worker-gpu", driver="580")
    assert failed.returncode == 1
    assert "NVIDIA driver 580 does not run after two restarts" in failed.stderr
    assert "reboot" not in machine.calls


def test_a_cpu_machine_runs_its_image_by_digest_and_knows_nothing_of_gpus(machine: Machine) -> None:
    done = machine.boot("worker-cpu")
    assert done.returncode == 0, done.stderr
    assert "nvidia" not in machine.calls
    assert "docker compose --project-directory" in machine.calls
    assert f"image: {IMAGE}" in machine.read("opt/kronos/docker-compose.override.yml")
    assert machine.read("opt/kronos/docker-compose.yml") == (ROOT / "docker-compose.yml").read_text()
    assert machine.read("opt/kronos/.env") == "KRONOS_DRAIN_TIMEOUT_S=15\n"
    assert machine.read("opt/kronos/secrets/redis_url").strip() == "s3cret"
    assert machine.read("opt/kronos/secrets/tls/redis.pem") == "CERTIFICATE"
    assert "up --detach --no-deps --pull never worker-cpu" in machine.read(
        "etc/systemd/system/kronos.service"
    )
    assert re.search("gcsfuse .*--uid 10001 --gid 10001 |^chown 10001:10001 ", machine.calls, re.MULTILINE)
    assert "s3cret" not in machine.calls
    assert (machine.root / "opt/kronos/secrets").stat().st_mode & 0o777 == 0o700


def test_a_machine_without_its_secrets_or_its_image_says_so_and_starts_nothing(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    for command in ("curl", "docker"):
        machine.fail(command)
        assert machine.boot("worker-cpu").returncode != 0
        assert "systemctl restart kronos.service" not in machine.calls
        machine.reply(command, "")


def test_redis_keeps_every_job_on_its_disk_and_speaks_tls_alone(machine: Machine) -> None:
    done = machine.boot("redis")
    assert done.returncode == 0, done.stderr
    lines = machine.read("etc/redis/kronos.conf").splitlines()
    assert {
        "appendonly yes",
        "maxmemory-policy noeviction",
        "port 0",
        "tls-port 6379",
        "tls-auth-clients no",
        "aclfile /etc/redis/users.acl",
        "dir /var/lib/redis",
    } <= {*lines}
    assert any(line.startswith("maxmemory ") and line.endswith("kb") for line in lines)
    assert f"mkfs.ext4 -q {os.devnull}" in machine.calls
    assert (machine.root / "etc/redis/kronos.key").stat().st_mode & 0o077 == 0
    machine.reply("blkid", "ext4")
    assert machine.boot("redis").returncode == 0
    assert "mkfs" not in machine.calls, "a second boot would have formatted the disk"


def metrics(**queues: tuple[int, int, int]) -> str:
    """The API's own text: jobs that wait, in two priorities, jobs in training, and workers of each queue."""
    shown = HttpMetrics()
    for queue, (waiting, training, workers) in queues.items():
        name = queue.replace("_", ".")
        shown.queue_jobs.labels(name, "high").set(waiting // 2)
        shown.queue_jobs.labels(name, "normal").set(waiting - waiting // 2)
        shown.jobs_training.labels(name).set(training)
        shown.workers.labels(name).set(workers)
    return generate_latest(shown.registry).decode()


@pytest.mark.parametrize(
    ("given", "load"),
    [
        ((0, 0, 3), 0),
        ((25, 0, 3), 25),
        ((2, 1, 1), 3),
        ((0, 1, 4), 4),  # while one trains, none of the four may be ended
        ((5, 1, 4), 6),
    ],
)
def test_the_reported_load_is_what_keda_scales_by(
    machine: Machine, given: tuple[int, int, int], load: int
) -> None:
    (machine.replies / "metrics").write_text(metrics(gpu_finetune=given))
    (machine.root / "opt/kronos/secrets/metrics_key").write_text("k3y")
    machine.boot("api", "report-loads")  # ends as the stand-in of sleep fails
    points = machine.replies / "points"
    reported = points.read_text() if points.exists() else machine.calls
    assert f'"doubleValue": {load}}}' in reported or f"queue=gpu.finetune --value {load}\n" in reported
    assert "k3y" not in machine.calls


def test_without_figures_no_load_is_reported(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    registry = CollectorRegistry()
    Gauge("kronos_redis_up", "Whether Redis answers this service", registry=registry).set(0)
    (machine.replies / "metrics").write_bytes(generate_latest(registry))
    (machine.root / "opt/kronos/secrets/metrics_key").write_text("k3y")
    machine.boot("api", "report-loads")
    assert not (machine.replies / "points").exists()


def test_a_preempted_machine_gives_its_jobs_back_within_thirty_seconds(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    assert machine.boot("finetune-cpu").returncode == 0
    unit = machine.read("etc/systemd/system/kronos.service")
    assert {"Requires=docker.service", "After=docker.service network-online.target"} <= {*unit.splitlines()}
    stopped_s = int(unit.split("stop --timeout ")[1].split()[0])
    ended_s = int(unit.split("TimeoutStopSec=")[1].split()[0])
    settings = (TERRAFORM / "machine" / "main.tf").read_text()
    for name in ("KRONOS_DRAIN_TIMEOUT_S", "KRONOS_FINETUNE_GRACE_S"):
        assert int(settings.split(name)[1].split('"')[1]) < stopped_s < ended_s < 30


def test_the_override_replaces_services_and_volumes_that_compose_has() -> None:
    text = (TERRAFORM / "machine" / "override.yml").read_text()
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    override = yaml.safe_load(
        text.replace("${service}", "api")
        .replace("${image}", IMAGE)
        .replace("${ports}", "")
        .replace("!reset", "")
    )
    assert set(override["services"]) <= set(compose["services"])
    assert set(override["volumes"]) <= set(compose["volumes"])
