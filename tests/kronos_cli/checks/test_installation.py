"""Python, packages and variables; and all checks together: a broken check hides no other."""

import os
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from kronos_cli.checks import Finding, installation
from kronos_cli.checks.installation import (
    check_installation,
    known_names,
    package_findings,
    python_finding,
    variable_findings,
    worker_findings,
)
from kronos_client.testing import fake_worker
from tests.all_settings import AllSettings

OWN = {"id": "stand-in", "revision": None, "tokenizer_id": "stand-in", "tokenizer_revision": None}
SERVING = fake_worker(model=OWN)


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
    monkeypatch.setattr("kronos_cli.checks.installation.SERVERS", ("no-such-server",))
    assert of(tmp_path, "no-such-server==1")[0][0] == "warning"


def test_the_remedy_installs_from_the_checkout_and_not_from_an_index(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("kronos_cli.checks.installation.requires", lambda _: ["no-such-package==2.0"])
    (finding,) = package_findings(tmp_path)
    assert finding.remedy == 'pip install ".[worker]" in the checkout'
    assert "kronos-worker" not in finding.remedy


def test_missing_packaging_is_a_finding(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "requirements.txt").write_text("numpy==1.0")
    monkeypatch.setattr("kronos_cli.checks.installation.find_spec", lambda _: None)
    (finding,) = package_findings(tmp_path)
    assert (finding.level, "packaging is not installed" in finding.message) == ("failed", True)


def test_without_requirements_versions_are_not_compared(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("kronos_cli.checks.installation.DISTRIBUTION", "no-such-distribution")
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
        ("KRONOS_FLOWER_USR", "write KRONOS_FLOWER_PASSWORD, or unset it"),  # not a retired one
        ("KRONOS_XYZZY_QWERTZ", "unset it"),
    ],
)
def test_an_unknown_variable_is_named_with_the_closest_setting(
    monkeypatch: pytest.MonkeyPatch, variable: str, remedy: str
) -> None:
    monkeypatch.setenv("KRONOS_MAX_JOBS", "3")
    monkeypatch.setenv("KRONOS_API_KEYS_FILE", "/keys")
    monkeypatch.setenv("KRONOS_API_URL", "printed by kronos up --quiet")
    monkeypatch.setenv(variable, "x")
    (finding,) = variable_findings()
    assert (finding.level, finding.remedy) == ("warning", remedy)
    assert variable in finding.message


@pytest.mark.parametrize(
    ("workers", "level", "text"),
    [
        ([fake_worker()], "ok", "forecasting: 1 alive, 1 ready"),
        ([fake_worker("gpu"), fake_worker(state="loading")], "ok", "forecasting: 2 alive, 1 ready"),
        ([fake_worker(state="loading")], "warning", "forecasting: 1 alive, 0 ready"),
        ([fake_worker(state="draining")], "warning", "0 ready"),
        ([fake_worker("cpu.finetune")], "warning", "0 alive, 0 ready; finetuning: 1 alive"),
        ([], "warning", "no worker is alive"),
    ],
)
def test_without_a_ready_forecast_worker_there_is_a_warning(
    workers: list[Any], level: str, text: str
) -> None:
    (finding,) = worker_findings(workers)
    assert (finding.level, text in finding.message) == (level, True)
    assert bool(finding.remedy) is (level != "ok")


def test_a_worker_that_cannot_store_is_a_failure() -> None:
    counted, problem = worker_findings([fake_worker(problem="Redis is full; make room")])
    assert (counted.level, problem.level) == ("warning", "failed")
    assert "not ready: Redis is full; make room" in problem.message


@pytest.mark.parametrize(
    ("model", "workers", "level", "text"),
    [
        (None, [SERVING], "ok", "live workers serve stand-in"),
        (None, [fake_worker("cpu.finetune")], "warning", "not on this machine yet"),
        ("small", [SERVING], "warning", "not on this machine yet"),
    ],
)
def test_a_machine_that_names_no_model_needs_none_where_workers_serve_one(
    monkeypatch: pytest.MonkeyPatch, model: str | None, workers: list[Any], level: str, text: str
) -> None:
    if model is not None:
        monkeypatch.setenv("KRONOS_MODEL", model)
    engine = {"kind": "native", "why": "AVX2", "is_fallback": False}
    device = {
        "device": "cpu",
        "description": {"name": "CPU"},
        "warning": None,
        "skipped": None,
        "engine": engine,
    }
    report = {"devices": [device], "model": {"error": "offline", "code": "CHECKPOINT_UNREACHABLE"}}
    monkeypatch.setattr("kronos_cli.checks.machine.run_probe", lambda *_, **__: report)
    monkeypatch.setattr(installation, "redis_findings", lambda _: [Finding("redis", "ok", "")])
    monkeypatch.setattr(installation, "_workers", lambda _: workers)
    (found,) = (finding for finding in check_installation() if finding.check == "model")
    assert (found.level, text in found.message) == (level, True)


@pytest.mark.parametrize(
    ("name", "check"),
    [
        ("package_findings", "packages"),
        ("redis_findings", "redis"),
        ("folder_findings", "folders"),
        ("port_findings", "ports"),
        ("compute_findings", "device"),
    ],
)
def test_a_broken_check_is_a_finding_and_hides_no_other(
    monkeypatch: pytest.MonkeyPatch, name: str, check: str
) -> None:
    monkeypatch.setenv("KRONOS_REDIS_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setattr(installation, "compute_findings", lambda *_: [])

    def fail(*_: Any) -> Any:
        raise ValueError("a\nb")

    monkeypatch.setattr(installation, name, fail)
    found = {finding.check: finding for finding in check_installation()}
    assert found[check].level == "failed"
    assert "ValueError" in found[check].message
    assert "\n" not in found[check].message
    others = {"packages": "packages", "redis": "redis", "folders": "model cache", "ports": "api port"}
    others.pop(check, None)
    assert set(others.values()) < found.keys()


def test_a_missing_module_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Any:
        raise ModuleNotFoundError("No module named 'packaging'", name="packaging")

    monkeypatch.setenv("KRONOS_REDIS_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setattr(installation, "package_findings", fail)
    (finding,) = [one for one in check_installation(with_compute=False) if one.check == "packages"]
    assert finding.message == "packaging is not installed"
    assert 'pip install ".[worker]"' in finding.remedy
