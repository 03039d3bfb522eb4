"""Lists of jobs, data sets and models: pages, and what is deleted from them."""

import errno
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
from fastapi.testclient import TestClient

from api_stub.main import create_app
from kronos_client.contract.names import jobs_key
from kronos_client.contract.schemas import example
from tests.api_stub.conftest import ADDRESS

FORECASTS = "/v1/forecasts"


def enqueue(http, num_jobs: int, url: str = FORECASTS) -> list[str]:
    name = "forecast-job" if url == FORECASTS else "finetune-job"
    return [http.post(url, json=example(name)).json()["id"] for _ in range(num_jobs)]


def pages(http, url: str, limit: int) -> list[list[str]]:
    """The ids or names on each page."""
    found, cursor = [], None
    while True:
        answer = http.get(url, params={"limit": limit} | ({} if cursor is None else {"cursor": cursor}))
        assert answer.status_code == 200, answer.text
        content = answer.json()
        found.append([item.get("id") or item["name"] for item in content[url.rpartition("/")[2]]])
        if (cursor := content["next"]) is None:
            return found


def test_jobs_are_listed_by_kind_and_newest_first(http):
    first, second, third = enqueue(http, 3)
    (training,) = enqueue(http, 1, "/v1/finetunes")
    listed = http.get(FORECASTS).json()
    assert [job["id"] for job in listed["jobs"]] == [third, second, first]
    assert listed["next"] is None
    (job,) = http.get("/v1/finetunes").json()["jobs"]
    assert (job["id"], job["state"], job["url"]) == (training, "queued", f"/v1/finetunes/{training}")


@pytest.mark.parametrize("limit", [1, 2, 3, 4])
def test_pages_of_jobs_hold_each_once(http, limit):
    ids = enqueue(http, 3)
    found, cursor = [], None
    while True:
        query = {"limit": limit} | ({} if cursor is None else {"cursor": cursor})
        page = http.get(FORECASTS, params=query).json()
        assert len(page["jobs"]) <= limit
        found += [job["id"] for job in page["jobs"]]
        if (cursor := page["next"]) is None:
            break
        enqueue(http, 1)  # a newer job does not move the page
    assert found == ids[::-1]


def test_listed_jobs_have_their_state_even_with_a_long_result(http, jobs):
    running, done, failed, cancelled = enqueue(http, 4)
    jobs.publish(running, "PROGRESS", {"bars_done": 1, "bars_total": 2})
    jobs.finish(done, example("forecast-result") | {"worker": "é" * 10_000})
    jobs.fail(failed, "OUT_OF_MEMORY", "é" * 200)
    http.delete(f"{FORECASTS}/{cancelled}")
    states = {job["id"]: (job["state"], job["code"]) for job in http.get(FORECASTS).json()["jobs"]}
    assert states == {
        running: ("running", None),
        done: ("done", None),
        failed: ("failed", "OUT_OF_MEMORY"),
        cancelled: ("cancelled", "CANCELLED"),
    }


def test_a_job_whose_result_is_gone_leaves_the_list(http, jobs, redis):
    kept, gone = enqueue(http, 2)
    jobs.finish(gone)
    redis.delete(f"celery-task-meta-{gone}")
    assert [job["id"] for job in http.get(FORECASTS).json()["jobs"]] == [kept]
    assert redis.zcard(jobs_key("forecast")) == 1


def test_the_result_of_a_job_that_is_done_is_deleted_on_request(http, jobs):
    (job_id,) = enqueue(http, 1)
    jobs.finish(job_id)
    url = f"{FORECASTS}/{job_id}"
    assert http.delete(url).json()["state"] == "done"
    assert http.delete(url, params={"forget": True}).json()["error"]["code"] == "RESULT_EXPIRED"
    assert http.get(url).json()["result"] is None


def test_data_sets_are_listed_in_pages_and_deleted(http, settings, monkeypatch):
    folder = settings.data_folder / "desk"
    folder.mkdir(parents=True)
    for name in ("a.csv", "b.parquet", "c.csv"):
        (folder / name).write_text("x")
    assert pages(http, "/v1/datasets", 2) == [["desk/a.csv", "desk/b.parquet"], ["desk/c.csv"]]
    assert http.delete("/v1/datasets/desk/b.parquet").status_code == 204
    assert pages(http, "/v1/datasets", 2) == [["desk/a.csv", "desk/c.csv"]]
    again = http.delete("/v1/datasets/desk/b.parquet")
    assert (again.status_code, again.json()["code"]) == (404, "NOT_FOUND")
    with monkeypatch.context() as read_only:
        read_only.setattr(Path, "unlink", Mock(side_effect=OSError(errno.EROFS, "Read-only file system")))
        kept = http.delete("/v1/datasets/desk/a.csv")
    assert (kept.status_code, kept.json()["code"]) == (403, "READ_ONLY")
    changed = http.get("/v1/datasets", params={"cursor": "desk/b.parquet"})
    assert (changed.status_code, changed.json()["field"]) == (422, "cursor")


@pytest.mark.parametrize(
    "name", ["../secret.csv", "%2e%2e/secret.csv", "/secret.csv", "desk", ".hidden.csv", "link.csv"]
)
def test_nothing_outside_the_list_of_data_sets_is_deleted(http, settings, name):
    (settings.data_folder / "desk").mkdir(parents=True)
    secret, hidden = settings.data_folder.parent / "secret.csv", settings.data_folder / ".hidden.csv"
    for path in (secret, hidden):
        path.write_text("x")
    (settings.data_folder / "link.csv").symlink_to(secret)
    assert http.delete(f"{ADDRESS}/v1/datasets/{name}").status_code == 404
    assert secret.exists()
    assert hidden.exists()
    assert (settings.data_folder / "link.csv").is_symlink()


def test_models_are_listed_in_pages_and_registered_ones_deleted(settings, ready_worker, monkeypatch):
    folder = settings.data_folder.parent / "models"
    for version in ("1", "2"):
        (folder / "desk" / version).mkdir(parents=True)
    with TestClient(
        create_app(settings.model_copy(update={"model_folder": folder})), base_url=ADDRESS
    ) as http:
        assert pages(http, "/v1/models", 2) == [["kronos-tiny", "desk@2"], ["desk@1"]]
        assert http.delete("/v1/models/desk@2").status_code == 204
        assert pages(http, "/v1/models", 2) == [["kronos-tiny", "desk@1"]]
        for name in ("desk@2", "desk", "kronos-tiny", "NeoQuasar/Kronos-small"):
            answer = http.delete(f"{ADDRESS}/v1/models/{name}")
            assert (answer.status_code, answer.json()["code"]) == (404, "NOT_FOUND")
        monkeypatch.setattr(shutil, "rmtree", Mock(side_effect=OSError(errno.EROFS, "Read-only file system")))
        kept = http.delete("/v1/models/desk@1")
        assert (kept.status_code, kept.json()["code"]) == (403, "READ_ONLY")
    assert (folder / "desk" / "1").is_dir()
