"""All checks together."""

import platform
from collections.abc import Callable, Sequence

from redis.exceptions import RedisError

from kronos_cli.checks.finding import Finding
from kronos_cli.checks.machine import compute_findings, folder_findings, port_findings
from kronos_cli.checks.packages import INSTALL, package_findings, python_finding
from kronos_cli.checks.redis_server import redis_findings
from kronos_cli.settings import CliSettings
from kronos_client.contract.names import CPU_QUEUE, GPU_QUEUE
from kronos_client.redis.connection import connect
from kronos_client.redis.routing import Status, live_workers
from kronos_client.settings import SettingsError
from kronos_model.text import one_line


def check_installation(*, with_compute: bool = True) -> list[Finding]:
    """Everything, as the environment is now; ``with_compute`` tries device and model too."""
    findings = [python_finding(), *_findings_of("packages", package_findings)]
    try:
        settings = CliSettings.load()
    except SettingsError as error:
        return [*findings, Finding("settings", "failed", str(error), "correct or unset that variable")]
    findings.append(Finding("settings", "ok", f"{len(settings.model_fields_set)} are set"))
    redis = _findings_of("redis", lambda: redis_findings(settings))
    findings += redis
    workers = _workers(settings) if redis[0].level != "failed" else None
    if workers is not None:
        findings += _findings_of("workers", lambda: worker_findings(workers))
    here = [str(worker.get("node")) for worker in workers or [] if worker.get("host") == platform.node()]
    findings += _findings_of("folders", lambda: folder_findings(settings))
    findings += _findings_of("ports", lambda: port_findings(settings, here))
    return findings + (_findings_of("device", lambda: compute_findings(settings)) if with_compute else [])


def _findings_of(check: str, look: Callable[[], list[Finding]]) -> list[Finding]:
    """What a check finds; a check that fails itself is a finding too."""
    try:
        return look()
    except ModuleNotFoundError as error:
        return [Finding(check, "failed", f"{error.name} is not installed", INSTALL)]
    except Exception as error:  # noqa: BLE001  # whatever it is, the other checks are to be told of
        text = one_line(f"{type(error).__name__}: {error}")
        return [Finding(check, "failed", f"could not be looked at: {text}", "report it, with this line")]


def worker_findings(workers: Sequence[Status]) -> list[Finding]:
    """How many there are, and the warnings that they announce."""
    if not workers:
        return [Finding("workers", "warning", "none is alive on this Redis", "start one: kronos worker")]
    forecasting = [worker for worker in workers if worker["queue"] in (CPU_QUEUE, GPU_QUEUE)]
    num_ready = sum(worker["state"] == "ready" for worker in forecasting)
    num_others = len(workers) - len(forecasting)
    text = f"{len(forecasting)} for forecasts alive, {num_ready} ready"
    text += f"; {num_others} for finetuning" if num_others else ""
    if num_ready:
        findings = [Finding("workers", "ok", text)]
    else:
        remedy = "wait until it has loaded, or see its log" if forecasting else "start one: kronos worker"
        findings = [Finding("workers", "warning", text, remedy)]
    for worker in workers:
        if worker["device_warning"]:
            text = f"{worker['node']}: {worker['device_warning']}"
            findings.append(Finding("workers", "warning", text, "run kronos devices on its machine"))
    return findings


def worker_here(workers: Sequence[Status]) -> Finding:
    """Whether a worker on this host is ready."""
    host = platform.node()
    here = [worker for worker in workers if worker["host"] == host]
    states = ", ".join(f"{worker['node']} is {worker['state']}" for worker in here)
    if any(worker["state"] == "ready" for worker in here):
        return Finding("worker", "ok", states)
    remedy = "see its log; start one with: kronos worker"
    return Finding("worker", "failed", states or f"no worker on {host} has announced itself", remedy)


def _workers(settings: CliSettings) -> list[Status] | None:
    try:
        with connect(settings.redis_url.get_secret_value()) as redis:
            return live_workers(redis)
    except (RedisError, ValueError):  # it answered a moment ago, does not let us ask, or has what is not ours
        return None
