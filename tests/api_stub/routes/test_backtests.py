"""The routes of backtests: jobs as of any kind, and their reports."""

import errno
import shutil

import pytest
from fastapi.testclient import TestClient

from api_stub.main import create_app
from kronos_client.registry.registered_model import output_folder
from tests.api_stub.conftest import ADDRESS

URL = "/v1/backtests"
PARQUET = "application/vnd.apache.parquet"


@pytest.fixture
def shared(settings, tmp_path):
    """A client of a service that sees the workers' model folder, in which the backtest "job" is done."""
    folder = output_folder(tmp_path, "job")
    folder.mkdir(parents=True)
    for name in ("report.json", "report.html", "forecasts.parquet"):
        (folder / name).write_text(name)
    settings = settings.model_copy(update={"model_folder": tmp_path})
    with TestClient(create_app(settings), base_url=ADDRESS) as client:
        yield client


@pytest.mark.parametrize(
    ("accept", "name", "media_type"),
    [
        ("*/*", "report.json", "application/json"),
        ("text/html,application/xhtml+xml,*/*;q=0.8", "report.html", "text/html; charset=utf-8"),
        (PARQUET, "forecasts.parquet", PARQUET),
    ],
)
def test_a_report_is_answered_in_the_form_that_is_asked_for(shared, accept, name, media_type):
    answer = shared.get(f"{URL}/job/report", headers={"Accept": accept})
    assert (answer.status_code, answer.text, answer.headers["content-type"]) == (200, name, media_type)
    assert "sandbox" in answer.headers["content-security-policy"]


def test_a_report_stays_until_it_is_deleted(shared, http, tmp_path):
    assert http.get(f"{URL}/job/report").json()["code"] == "NOT_FOUND"  # this service has no model folder
    assert shared.delete(f"{URL}/job/report").status_code == 204
    missing = shared.get(f"{URL}/job/report")
    assert (missing.status_code, missing.json()["field"]) == (404, "job_id")
    assert not output_folder(tmp_path, "job").parent.exists()


def test_a_report_in_a_folder_that_this_service_may_not_write_is_not_called_a_full_disk(shared, monkeypatch):
    def refuse(folder):
        raise OSError(errno.EROFS, "Read-only file system", str(folder))

    monkeypatch.setattr(shutil, "rmtree", refuse)
    answer = shared.delete(f"{URL}/job/report")
    assert (answer.status_code, answer.json()["code"]) == (403, "READ_ONLY")
    assert "KRONOS_MODEL_FOLDER" in answer.json()["detail"]
