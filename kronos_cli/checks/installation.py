"""All checks of an installation, and the health check of this host's worker."""

import platform
from collections.abc import Callable, Iterable, Iterator, Sequence

from redis.exceptions import RedisError

from kronos_cli.checks import Finding
from kronos_cli.checks.environment import INSTALL, package_findings, python_finding, variable_findings
from kronos_cli.checks.machine import compute_findings, folder_findings, port_findings
from kronos_cli.checks.redis_server import redis_findings
from kronos_cli.settings import CliSettings
from kronos_client.contract.worker_status import AnyWorkerStatus, ForecastWorkerStatus, WorkerStatus
from kronos_client.redis.connection import connect
from kronos_client.redis.routing import live_workers
from kronos_client.settings import SettingsError
from kronos_model.text import one_line

START_ONE = "start one: kronos worker"


def check_installation(*, with_compute: bool = True) -> list[Finding]:
    """Run all checks. ``with_compute`` also tries the device and the model, which takes seconds."""
    findings = [python_finding(), *_findings_of("packages", package_findings), *variable_findings()]
    try:
        settings = CliSettings.load()
    except SettingsError as error:
        return [*findings, Finding("settings", "failed", str(error), "correct or unset this variable")]
    findings.append(Finding("settings", "ok", f"{len(settings.model_fields_set)} set, all valid"))
    redis = _findings_of("redis", lambda: redis_findings(settings))
    findings += redis
    workers: Sequence[AnyWorkerStatus] = []
    if redis[0].level != "failed":
        try:
            workers = _workers(settings)
            findings += _findings_of("workers", lambda: worker_findings(workers))
        except RedisError:  # Redis is gone since the last check, or this user may not read the workers
            pass
    here = [worker.node for worker in workers if worker.host == platform.node()]
    findings += _findings_of("folders", lambda: folder_findings(settings))
    findings += _findings_of("ports", lambda: port_findings(settings, here))
    return findings + (_findings_of("device", lambda: compute_findings(settings)) if with_compute else [])


def _findings_of(check: str, run: Callable[[], Iterable[Finding]]) -> list[Finding]:
    try:
        return list(run())
    except ModuleNotFoundError as error:
        return [Finding(check, "failed", f"{error.name} is not installed", INSTALL)]
    except Exception as error:  # noqa: BLE001  # one broken check must not hide the others
        text = one_line(f"{type(error).__name__}: {error}")
        return [Finding(check, "failed", f"the check itself failed: {text}", "report this line as a defect")]


def worker_findings(workers: Sequence[WorkerStatus]) -> Iterator[Finding]:
    """Count the live workers, and repeat their warnings."""
    if not workers:
        yield Finding("workers", "warning", "no worker is alive on this Redis", START_ONE)
        return
    forecasting = [worker for worker in workers if isinstance(worker, ForecastWorkerStatus)]
    num_ready = sum(worker.is_ready for worker in forecasting)
    num_others = len(workers) - len(forecasting)
    text = f"forecasting: {len(forecasting)} alive, {num_ready} ready"
    text += f"; finetuning: {num_others} alive" if num_others else ""
    remedy = "wait until a worker has loaded its model, or read its log" if forecasting else START_ONE
    yield Finding("workers", "ok" if num_ready else "warning", text, remedy)
    for worker in workers:
        if worker.problem is not None:
            text = f"{worker.node} is {worker.condition}"
            yield Finding("workers", "failed", text, "repair Redis; the worker goes on by itself")
        for warning in worker.all_warnings():
            remedy = "run kronos devices" if warning == worker.device_warning else "run kronos check"
            yield Finding("workers", "warning", f"{worker.node}: {warning}", f"{remedy} on its machine")


def worker_here(settings: CliSettings) -> Finding:
    """Whether a worker on this host is ready."""
    host = platform.node()
    try:
        here = [worker for worker in _workers(settings) if worker.host == host]
    except RedisError as error:
        problem = f"Redis (KRONOS_REDIS_URL) does not answer: {error}"
        return Finding("worker", "failed", problem, "run kronos check for details")
    is_ready = any(worker.is_ready for worker in here)
    text = ", ".join(f"{worker.node} is {worker.condition}" for worker in here)
    text = text or f"no worker on {host} has announced itself"
    return Finding("worker", "ok" if is_ready else "failed", text, f"read its log, or {START_ONE}")


def _workers(settings: CliSettings) -> list[AnyWorkerStatus]:
    with connect(settings.redis_url.get_secret_value()) as redis:
        return live_workers(redis)
