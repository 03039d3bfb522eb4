"""All checks together: a broken check hides no other, and the workers are counted."""

from typing import Any

import pytest

from kronos_cli.checks import installation
from kronos_cli.checks.installation import check_installation, worker_findings
from kronos_client.testing import fake_worker


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
    monkeypatch.setattr(installation, "compute_findings", lambda _: [])

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
