"""The page without a worker, the API or a key: it says so, and recovers by itself."""

import json
from pathlib import Path

import pytest

from tests.integration.conftest import ROOT, StartWorker
from tests.integration.finetune_bench import FAKE
from tests.page.conftest import TINY, ApiUnderTest, OpenPage, StartApi, Visit, go_to, wait_until
from tests.waiting import WAIT_S

FIELDS = {"horizon": 6, "lookback": 128, "samples": 4, "seed": 7}
KEY = "a-key-of-this-test-alone"
SAMPLE = ROOT / "api_stub" / "page" / "sample.csv"
GPU = {
    "node": "worker@gpu",
    "role": "forecast",
    "state": "ready",
    "device": "cuda:1",
    "queue": "gpu",
    "jobs_done": 0,
    "jobs_failed": 0,
    "uptime_s": 60,
}
"""The status of a worker that does not exist."""


def announce(visit: Visit, *workers: dict) -> None:
    """Make these the only workers that the page receives."""
    content = json.dumps({"workers": workers, "queues": {}})
    visit.page.unroute_all()
    visit.page.route(
        "**/v1/workers", lambda route: route.fulfill(body=content, content_type="application/json")
    )


def upload(visit: Visit, address: Path = SAMPLE) -> None:
    go_to(visit.page, "finetune")
    visit.page.check("#dataset-replace")
    visit.page.set_input_files("#dataset-file", address)
    wait_until(
        visit.page, "() => document.querySelector('#dataset-state').textContent.includes('is uploaded')"
    )


def text_begins(visit: Visit, element_id: str, text: str) -> None:
    """Wait until an element's text begins so."""
    wait_until(
        visit.page,
        "([id, text]) => document.getElementById(id).textContent.startsWith(text)",
        [element_id, text],
    )


def test_without_a_worker_a_job_waits_and_can_be_cancelled(visit: Visit):
    page = visit.use_sample(**FIELDS)
    page.click("#run")
    page.wait_for_selector("#job")
    assert page.inner_text("#readiness") == "No worker is running"
    text_begins(visit, "job-state", "No worker is running. This starts by itself once")
    assert "kronos worker" in page.locator("#no-workers:not([hidden])").text_content()
    visit.shoot("no-worker")
    page.click("#cancel")
    page.wait_for_selector("#job-problem")
    assert "(CANCELLED)" in page.inner_text("#job-problem")


def test_a_stopped_worker_is_reported_and_the_next_one_computes_the_job(
    visit: Visit, start_worker: StartWorker
):
    first = start_worker(**TINY).wait_until_ready()
    page = visit.use_sample(**FIELDS)
    page.wait_for_selector("#readiness.ready")
    assert first.stop() == 0
    page.wait_for_selector("#readiness:not(.ready)")
    assert page.inner_text("#readiness") == "No worker is running"
    page.click("#run")
    text_begins(visit, "job-state", "No worker is running")
    second = start_worker(**TINY)
    page.wait_for_selector("#download-json")
    assert second.node in page.inner_text("#made-by")
    assert second.stop() == 0


@pytest.mark.at_length
def test_a_killed_worker_is_reported_and_the_next_one_starts_the_job_again(
    visit: Visit, start_worker: StartWorker
):
    settings = TINY | {"KRONOS_VISIBILITY_TIMEOUT_S": "4"}  # the second soon takes what the first held
    first = start_worker(**settings).wait_until_ready()
    page = visit.use_sample(**FIELDS | {"samples": 256, "horizon": 400, "lookback": 176})
    page.click("#run")
    wait_until(page, "() => document.querySelector('#job-progress').value > 0")
    # Another worker is running, but has not taken the job.
    announce(visit, GPU | {"jobs_running": [], "num_jobs_running": 0})
    first.process.kill()
    first.process.wait(WAIT_S)
    text_begins(
        visit, "job-state", "The worker that computed this is gone. Another worker will start it again"
    )
    assert page.get_attribute("#job-progress", "value") is None
    page.unroute_all()
    wait_until(page, "() => document.querySelector('#readiness').textContent === 'No worker is running'")
    second = start_worker(**settings)
    text_begins(visit, "job-state", "Computing")
    page.click("#cancel")
    page.wait_for_selector("#job-problem")
    assert "(CANCELLED)" in page.inner_text("#job-problem")
    assert second.stop() == 0


@pytest.mark.at_length
def test_a_killed_finetuning_worker_is_reported_and_the_next_one_goes_on(
    open_page: OpenPage, start_api: StartApi, start_worker: StartWorker, tmp_path: Path
):
    (tmp_path / "data").mkdir()
    folders = {"KRONOS_MODEL_FOLDER": str(tmp_path / "models"), "KRONOS_DATA_FOLDER": str(tmp_path / "data")}
    settings = folders | {
        "KRONOS_ROLE": "finetune",
        "KRONOS_VISIBILITY_TIMEOUT_S": "2",
        "FAKE_LOG": str(tmp_path / "trainer.log"),
        "FAKE_STEP_S": "0.1",
    }
    first = start_worker(*FAKE, **settings).wait_until_ready()
    visit = open_page(start_api(**folders))
    page = visit.open()
    upload(visit)
    page.fill("#epochs", "900")
    page.click("#train")
    text_begins(visit, "training-state", "Training the model")
    # Another worker is running, but has not taken the job.
    announce(visit, GPU | {"role": "finetune", "training": None})
    first.process.kill()
    first.process.wait(WAIT_S)
    text_begins(
        visit,
        "training-state",
        "The worker that trained this is gone. Another worker will go on from its last save",
    )
    assert page.inner_text("#training-share") == ""
    page.unroute_all()
    second = start_worker(*FAKE, **settings)
    text_begins(visit, "training-state", "Training the model")
    page.click("#stop-training")
    page.wait_for_selector("#training-problem")
    assert "(CANCELLED)" in page.inner_text("#training-problem")
    assert second.stop() == 0


def test_training_on_an_upload_can_be_queued_before_a_worker_runs(visit: Visit):
    visit.expected_failures = 20
    visit.page.route("**/v1/datasets", lambda route: route.fulfill(status=503, json={}))
    page = visit.open("#/finetune")
    text_begins(visit, "datasets-problem", "The service answered 503")
    page.unroute_all()
    page.wait_for_selector("#datasets-problem", state="hidden")
    visit.expected_failures = 0
    upload(visit)
    assert page.input_value("#dataset") == "sample.csv"
    page.reload()
    wait_until(page, "() => document.querySelector('#dataset').options.length > 0")
    assert page.locator("#dataset option").all_text_contents() == ["sample.csv"]
    page.click("#train")
    text_begins(visit, "training-state", "No worker for training and backtests is running.")
    page.click("#stop-training")
    page.wait_for_selector("#training-problem")
    assert "(CANCELLED)" in page.inner_text("#training-problem")


def test_training_can_start_before_the_models_are_read(visit: Visit):
    """If the list of models is slow, training starts from the bundled model."""
    visit.page.route("**/v1/models", lambda _: None)
    page = visit.open()
    upload(visit)
    with page.expect_request(lambda request: request.url.endswith("/v1/finetunes")) as submitted:
        page.click("#train")
    assert submitted.value.post_data_json["config"]["start"] == {"model": "kronos-tiny"}
    page.wait_for_selector("#training")
    page.click("#stop-training")
    page.wait_for_selector("#training-problem")
    assert "(CANCELLED)" in page.inner_text("#training-problem")


def test_the_list_of_files_is_read_again_after_a_failure(visit: Visit):
    visit.expected_failures = 2
    failing = {"status": 503, "json": {"detail": "Redis is away"}}
    visit.page.route("**/v1/datasets", lambda route: route.fulfill(**failing), times=1)
    page = visit.open("#/finetune")
    text_begins(visit, "datasets-problem", "Redis is away")
    names = {"datasets": [{"name": "theirs.parquet", "num_bytes": 1}]}
    page.route("**/v1/datasets", lambda route: route.fulfill(json=names))
    wait_until(page, "() => document.querySelector('#dataset').value === 'theirs.parquet'")
    assert page.locator("#datasets-problem").is_hidden()


def test_a_missing_data_folder_is_reported_once(open_page: OpenPage, start_api: StartApi):
    visit = open_page(start_api(KRONOS_DATA_FOLDER=""))
    page = visit.open()
    page.wait_for_selector("#readiness:not(:empty)")
    with page.expect_response("**/v1/workers"):
        pass
    assert "KRONOS_DATA_FOLDER" not in page.inner_text("body")  # nobody has asked to upload
    visit.expected_failures = 1
    go_to(page, "finetune")
    text_begins(visit, "datasets-problem", "This service stores no files, so it cannot train.")
    assert page.locator("#dataset-file").is_disabled()
    page.click("#train")
    assert page.inner_text("#finetune-form-problem") == page.inner_text("#datasets-problem")
    with page.expect_response("**/v1/workers"):
        pass
    page.wait_for_timeout(200)  # a second request would leave a second error


def test_a_device_stays_chosen_during_an_outage_and_after_it_is_gone(visit: Visit):
    announce(visit, GPU)
    page = visit.open()
    page.wait_for_selector("#device option[value='cuda:1']", state="attached")
    page.select_option("#device", "cuda:1")
    visit.expected_failures = 1000
    page.unroute_all()
    page.route("**/v1/workers", lambda route: route.fulfill(status=503, json={}))
    page.wait_for_selector("#readiness.away")
    assert page.input_value("#device") == "cuda:1"
    announce(visit)
    page.wait_for_selector("#device-gone")
    assert page.inner_text("#device-gone").startswith("cuda:1 is no longer there.")
    assert page.input_value("#device") == "cuda:1"
    assert page.inner_text("#device option:checked") == "cuda:1, no longer there"
    assert page.locator("#finetune-device-gone").is_hidden()
    announce(visit, GPU)
    page.wait_for_selector("#device-gone", state="hidden")
    assert page.input_value("#device") == "cuda:1"
    assert page.inner_text("#device option:checked") == "graphics card (cuda:1)"
    announce(visit)
    page.wait_for_selector("#device-gone")
    page.select_option("#device", "cpu")
    page.wait_for_selector("#device-gone", state="hidden")
    assert page.locator("#device option[value='cuda:1']").count() == 0


def test_a_stopped_api_is_reported_and_the_job_is_followed_once_it_is_back(
    open_page: OpenPage, start_api: StartApi
):
    api = start_api()
    visit = open_page(api)
    page = visit.use_sample(**FIELDS)
    page.click("#run")
    page.wait_for_selector("#job")
    wait_until(page, "() => document.querySelector('#job-state').textContent !== ''")
    visit.expected_failures = 1000
    api.stop()
    wait_until(
        page, "() => document.querySelector('#job-state').textContent.startsWith('The connection was lost')"
    )
    page.wait_for_selector("#readiness.away")
    assert page.inner_text("#api-problem").startswith("The service does not answer.")
    visit.shoot("no-api")
    api.start()
    text_begins(visit, "job-state", "No worker is running")
    page.wait_for_selector("#readiness:not(.away)")
    assert page.locator("#api-problem").is_hidden()
    page.click("#cancel")
    page.wait_for_selector("#job-problem")
    assert "(CANCELLED)" in page.inner_text("#job-problem")


@pytest.fixture(scope="module")
def locked_api(start_api: StartApi) -> ApiUnderTest:
    return start_api(KRONOS_API_KEYS=KEY)


def test_the_page_asks_for_a_key_and_keeps_it_for_the_tab_only(open_page: OpenPage, locked_api: ApiUnderTest):
    visit = open_page(locked_api)
    visit.expected_failures = 1000
    page = visit.open()
    page.wait_for_selector("#key-form")
    page.fill("#key", "a-wrong-key-of-this-test")
    page.keyboard.press("Enter")
    page.wait_for_selector("#key-refused")
    page.fill("#key", "no header carries ключ")
    page.keyboard.press("Enter")
    assert page.locator("#key-refused").is_visible()
    page.fill("#key", KEY)
    page.keyboard.press("Enter")
    page.wait_for_selector("#readiness:not(.away)")
    assert page.locator("#key-form").is_hidden()
    page.wait_for_selector("#no-workers:not([hidden])", state="attached")
    page.reload()
    page.wait_for_selector("#no-workers:not([hidden])", state="attached")
    assert page.locator("#key-form").is_hidden()
    assert page.evaluate("[localStorage.length, document.cookie, location.href]") == [0, "", locked_api.url]


def test_the_page_loads_and_runs_only_its_own_files(visit: Visit):
    answer = visit.page.goto(visit.url)
    assert answer is not None
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    refused = visit.page.evaluate(
        """() => new Promise((resolve) => {
            addEventListener("securitypolicyviolation", (event) => resolve(event.effectiveDirective))
            const script = Object.assign(document.createElement("script"), { textContent: "window.ran = 1" })
            document.body.append(script)
        })"""
    )
    assert refused == "script-src-elem"
    assert visit.page.evaluate("window.ran") is None
    visit.errors.clear()  # the refused script
