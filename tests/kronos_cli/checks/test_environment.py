"""Python, installed packages against the required versions, and variables that only look like settings."""

import os
from importlib.metadata import version
from pathlib import Path

import pytest

from kronos_cli.checks.environment import known_names, package_findings, python_finding, variable_findings
from tests.all_settings import AllSettings


def of(folder: Path, *lines: str) -> list[tuple[str, str]]:
    (folder / "requirements.txt").write_text("\n".join(lines))
    return [(finding.level, finding.message) for finding in package_findings(folder)]


def test_this_installation_is_as_pinned() -> None:
    assert {finding.level for finding in package_findings()} == {"ok"}
    assert python_finding().level == "ok"


def test_other_versions_warn_and_missing_packages_fail(tmp_path: Path) -> None:
    numpy = version("numpy")
    assert of(tmp_path, "# a comment", "", f"numpy=={numpy}  # why") == [
        ("ok", "all 1 match requirements.txt")
    ]
    assert of(tmp_path, "numpy==1.0", "no-such-package==2.0", "redis[hiredis]>=1") == [
        ("warning", f"numpy is {numpy}; required is numpy==1.0"),
        ("failed", "no-such-package is not installed; required is no-such-package==2.0"),
    ]


def test_builds_count_as_their_version(tmp_path: Path) -> None:
    torch = version("torch").partition("+")[0]
    assert of(tmp_path, f"torch=={torch}")[0][0] == "ok"


def test_requirements_of_other_platforms_are_skipped(tmp_path: Path) -> None:
    line = 'no-such-package==2.0; sys_platform == "win32"'
    assert of(tmp_path, line, "-r requirements.txt") == [("ok", "all 0 match requirements.txt")]


def test_a_missing_redis_server_package_is_only_a_warning(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("kronos_cli.checks.environment.SERVERS", ("no-such-server",))
    assert of(tmp_path, "no-such-server==1")[0][0] == "warning"


def test_the_remedy_installs_from_the_checkout_and_not_from_an_index(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("kronos_cli.checks.environment.requires", lambda _: ["no-such-package==2.0"])
    (finding,) = package_findings(tmp_path)
    assert finding.remedy == 'pip install ".[worker]" in the checkout'
    assert "kronos-worker" not in finding.remedy


def test_missing_packaging_is_a_finding(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "requirements.txt").write_text("numpy==1.0")
    monkeypatch.setattr("kronos_cli.checks.environment.find_spec", lambda _: None)
    (finding,) = package_findings(tmp_path)
    assert (finding.level, "packaging is not installed" in finding.message) == ("failed", True)


def test_without_requirements_versions_are_not_compared(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("kronos_cli.checks.environment.DISTRIBUTION", "no-such-distribution")
    (finding,) = package_findings(tmp_path)
    assert (finding.level, "no requirements.txt" in finding.message) == ("ok", True)


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("KRONOS_")]:
        monkeypatch.delenv(name)


def test_every_setting_of_every_wing_is_known() -> None:
    names = {name.upper() for name in AllSettings.model_fields}
    assert known_names() == names | {f"{name}_FILE" for name in names}


@pytest.mark.parametrize(
    ("variable", "remedy"),
    [
        ("KRONOS_MODLE", "write KRONOS_MODEL, or unset it"),
        ("KRONOS_REDIS_UR", "write KRONOS_REDIS_URL, or unset it"),
        ("KRONOS_API_KEY", "write KRONOS_API_KEYS, or unset it"),
        ("KRONOS_XYZZY_QWERTZ", "unset it"),
    ],
)
def test_an_unknown_variable_is_named_with_the_closest_setting(
    monkeypatch: pytest.MonkeyPatch, variable: str, remedy: str
) -> None:
    monkeypatch.setenv("KRONOS_MAX_JOBS", "3")
    monkeypatch.setenv("KRONOS_API_KEYS_FILE", "/keys")
    monkeypatch.setenv(variable, "x")
    (finding,) = variable_findings()
    assert (finding.level, finding.remedy) == ("warning", remedy)
    assert variable in finding.message
