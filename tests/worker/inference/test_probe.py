"""The short-lived process that tries devices and the model."""

import json
from typing import Any

import pytest

from kronos_model.engine import choice
from kronos_model.engine.memory import CPU_SLOTS
from worker.inference import model_loader, probe
from worker.inference.probe import ProbeError, run_probe
from worker.inference.probe_child import report_on


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("import os; os.kill(os.getpid(), 11)", "signal 11: no output"),
        ("raise ImportError('no torch')", "status 1: ImportError: no torch"),
        ("import time; time.sleep(600)", "took longer than 0.5 s"),
        ('print(\'{"event": "error", "message": "bad settings"}\')', "bad settings"),
    ],
)
def test_a_probe_that_dies_or_hangs_is_a_probe_error(monkeypatch, script: str, reason: str) -> None:
    replace_probe(monkeypatch, script)
    with pytest.raises(ProbeError, match=reason):
        run_probe(["cpu"], timeout_s=0.5 if "longer" in reason else 60)


def test_a_package_that_is_missing_is_named(monkeypatch) -> None:
    replace_probe(monkeypatch, "import no_such_package")
    with pytest.raises(ModuleNotFoundError) as missing:
        run_probe(["cpu"])
    assert missing.value.name == "no_such_package"


def replace_probe(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    start = probe.JsonChild

    def run(name: str, command: list[str], **given: Any) -> probe.JsonChild:
        return start(name, [command[0], "-c", script], **given)

    monkeypatch.setattr(probe, "JsonChild", run)


def test_a_probe_computes_and_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KRONOS_MODEL", "kronos-tiny")
    monkeypatch.setenv("KRONOS_ENGINE", "torch")
    report = run_probe(["cpu", "cuda:99", "gpu"], with_slots=True, with_model=True)
    cpu, absent, unknown = report["devices"]
    assert (cpu["device"], cpu["warning"], cpu["slots"]) == ("cpu", None, CPU_SLOTS)
    expected = {"kind": "torch", "why": "as asked for", "is_fallback": False, "is_compiled": True}
    assert cpu["engine"] == expected
    assert "cuda:99" in absent["warning"]
    assert "INVALID_DEVICE" in unknown["error"]
    assert (report["model"]["id"], report["model"]["slots"]) == ("kronos-tiny", CPU_SLOTS)
    assert json.dumps(report)


@pytest.mark.parametrize("is_compiled", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_probe_compiles_nothing(settings, monkeypatch, is_compiled: bool, dtype: str) -> None:
    asked: list[str] = []
    build_engine = model_loader.build_engine

    def build(*args: Any, kind: str, **options: Any) -> Any:
        asked.append(kind)
        return build_engine(*args, kind="torch", **options)

    def is_warm(dtypes: tuple[str, str]) -> bool:
        assert dtypes[0] == dtype
        return is_compiled

    monkeypatch.setattr(choice, "_reason_of_machine", lambda: None)
    monkeypatch.setattr(choice, "is_warm", is_warm)
    monkeypatch.setattr(model_loader, "build_engine", build)
    settings = settings.model_copy(update={"engine": "auto", "dtype": dtype})
    report = report_on(["cpu"], settings, with_slots=False, with_model=True)
    outlook = report["devices"][0]["engine"]
    assert (outlook["kind"], outlook["is_compiled"]) == ("native", is_compiled)
    assert asked == ["auto" if is_compiled else "torch"]


def test_settings_that_cannot_be_read_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ProbeError, match="KRONOS_MAX_JOBS"):
        run_probe(["cpu"], environment={"KRONOS_MAX_JOBS": "many"})


@pytest.fixture
def settings(settings):
    return settings.model_copy(update={"model": "kronos-tiny"})


def test_slots_follow_the_memory_and_an_unknown_model_has_none(settings) -> None:
    small = report_on(
        ["cpu"], settings.model_copy(update={"memory_mb": 16}), with_slots=True, with_model=True
    )
    assert 0 < small["devices"][0]["slots"] < CPU_SLOTS
    assert small["devices"][0]["slots"] == small["model"]["slots"]  # those of the engine
    least, absent = {"memory_mb": 1}, {"memory_mb": 16, "model": "/no/such/model"}
    for changes, code in ((least, "OUT_OF_MEMORY"), (absent, "CHECKPOINT_MISSING")):
        changed = settings.model_copy(update=changes)
        (device,) = report_on(["cpu"], changed, with_slots=True, with_model=False)["devices"]
        assert device["slots"] is None
        assert device["slots_error"].startswith(code)


def test_a_probe_without_the_model_loads_none(settings) -> None:
    absent = settings.model_copy(update={"model": "/no/such/model"})
    report = report_on(["cpu"], absent, with_slots=False, with_model=False)
    assert report["model"] is None
    assert "error" not in report["devices"][0]


def test_a_model_that_cannot_be_loaded_is_named(settings, tmp_path) -> None:
    for changes, code in (({"model": str(tmp_path)}, "CHECKPOINT"), ({"memory_mb": 1}, "OUT_OF_MEMORY")):
        report = report_on(["cpu"], settings.model_copy(update=changes), with_slots=False, with_model=True)
        assert report["model"]["error"].startswith(code)
