"""The variables and folders of the services on one machine."""

import io
import os
from pathlib import Path

import pytest
from rich.console import Console

from kronos_cli.settings import CliSettings
from kronos_cli.stack import services
from kronos_cli.stack.local_redis import LocalRedis
from kronos_cli.stack.processes import ProcessStack
from kronos_cli.stack.services import shared_folders, start_api, worker_names, worker_share
from kronos_model.devices import cores
from kronos_model.processes.children import LocalStackError, own_environment

BARE = CliSettings.model_construct()


def test_several_workers_have_names_of_their_own():
    assert worker_names(1) == ["worker"]
    assert worker_names(3) == ["worker-1", "worker-2", "worker-3"]


@pytest.mark.parametrize(
    ("num_cores", "num_workers", "threads"),
    [(1, 1, "1"), (2, 1, "1"), (8, 1, "7"), (8, 3, "2"), (8, 20, "1")],
)
def test_workers_share_all_cores_but_one(monkeypatch, num_cores, num_workers, threads):
    monkeypatch.setattr(cores, "num_cores", lambda: num_cores)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert worker_share(BARE, 0, num_workers) == {"KRONOS_THREADS": threads}


def test_the_users_number_of_threads_is_kept(monkeypatch):
    monkeypatch.setattr(cores, "num_cores", lambda: 8)
    assert worker_share(BARE.model_copy(update={"threads": 8}), 0, 2) == {"KRONOS_THREADS": "8"}
    monkeypatch.setitem(os.environ, "OMP_NUM_THREADS", "8")
    assert worker_share(BARE, 0, 2) == {}


def test_each_worker_has_its_own_metrics_port():
    settings = BARE.model_copy(update={"metrics_port": 9100})
    shares = [worker_share(settings, index, 2) for index in range(2)]
    assert [share["KRONOS_METRICS_PORT"] for share in shares] == ["9100", "9101"]


def test_folders_are_below_the_data_unless_the_settings_name_them(tmp_path):
    folders = shared_folders(tmp_path / "new", BARE)
    assert folders == {
        "KRONOS_DATA_FOLDER": str(tmp_path / "new" / "data"),
        "KRONOS_MODEL_FOLDER": str(tmp_path / "new" / "models"),
    }
    assert all(Path(folder).is_dir() for folder in folders.values())
    theirs = BARE.model_copy(update={"model_folder": tmp_path / "mine"})
    assert shared_folders(tmp_path, theirs)["KRONOS_MODEL_FOLDER"] == str(tmp_path / "mine")


@pytest.mark.parametrize("place", ["file", "/proc/x"])
def test_a_data_folder_that_cannot_be_used_is_one_line_that_names_the_option(tmp_path, place):
    (tmp_path / "file").touch()
    data = tmp_path / place
    for keep in (lambda: LocalRedis(data=data / "redis").__enter__(), lambda: shared_folders(data, BARE)):
        with pytest.raises(LocalStackError, match="--data") as error:
            keep()
        assert "\n" not in str(error.value)


def test_a_folder_of_the_settings_is_named_by_its_variable(tmp_path):
    (tmp_path / "file").touch()
    theirs = BARE.model_copy(update={"model_folder": tmp_path / "file"})
    with pytest.raises(LocalStackError, match="give KRONOS_MODEL_FOLDER"):
        shared_folders(tmp_path, theirs)


def test_without_the_packages_of_the_api_the_other_services_run(monkeypatch, tmp_path):
    monkeypatch.setattr(services, "API_PACKAGES", ("json", "no_such_package"))
    printed = io.StringIO()
    with ProcessStack() as stack:
        assert start_api(stack, None, BARE, {}, Console(file=printed)) is None
        assert stack.dead() is None
    assert "not installed: no_such_package." in printed.getvalue()


def test_given_variables_replace_a_file_that_this_process_read(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith("KRONOS_")]:
        monkeypatch.delenv(name)
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
