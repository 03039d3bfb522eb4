"""The environment of this package's child processes."""

import pytest

from kronos_cli.settings import CliSettings
from kronos_cli.stack.own_commands import engine_choice
from kronos_model.processes.children import own_environment


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CliSettings.model_fields:
        monkeypatch.delenv(f"KRONOS_{name.upper()}", raising=False)
        monkeypatch.delenv(f"KRONOS_{name.upper()}_FILE", raising=False)


def test_given_variables_replace_a_file_that_this_process_read(monkeypatch, tmp_path):
    (tmp_path / "url").write_text("redis://mine/0")
    (tmp_path / "device").write_text("cpu")
    monkeypatch.setenv("KRONOS_REDIS_URL_FILE", str(tmp_path / "url"))
    monkeypatch.setenv("KRONOS_DEVICE_FILE", str(tmp_path / "device"))
    given = {"KRONOS_REDIS_URL": "redis://started/0"}
    environment = own_environment(given)
    monkeypatch.delenv("KRONOS_REDIS_URL_FILE")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    settings = CliSettings.load()
    assert settings.redis_url.get_secret_value() == "redis://started/0"
    assert settings.device == "cpu"


@pytest.mark.parametrize(("is_compiled", "engine"), [(False, "torch"), (True, "auto")])
def test_a_first_job_does_not_wait_for_a_compilation(monkeypatch, is_compiled, engine):
    for name, value in own_environment(engine_choice(is_compiled=is_compiled)).items():
        monkeypatch.setenv(name, value)
    assert CliSettings.load().engine == engine
