"""Finetuning on the page: the upload, the live losses, and a forecast with the new model."""

from pathlib import Path

import pytest

from tests.integration.conftest import ROOT, StartWorker, WorkerUnderTest
from tests.integration.finetune_bench import FAKE
from tests.page.conftest import ApiUnderTest, OpenPage, StartApi, Visit, wait_until

SAMPLE = ROOT / "api_stub" / "page" / "sample.csv"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("finetuning")
    (folder / "data").mkdir()
    return {"KRONOS_MODEL_FOLDER": str(folder / "models"), "KRONOS_DATA_FOLDER": str(folder / "data")}


@pytest.fixture(scope="module", autouse=True)
def worker(browser, start_worker: StartWorker, folders: dict[str, str]) -> WorkerUnderTest:
    """A worker that reports progress as training does, but does not train."""
    log = str(Path(folders["KRONOS_DATA_FOLDER"]).parent / "trainer.log")
    fake = {"KRONOS_ROLE": "finetune", "FAKE_LOG": log, "FAKE_STEP_S": "0.1"}
    return start_worker(*FAKE, **folders, **fake).wait_until_ready()


@pytest.fixture(scope="module")
def api(start_api: StartApi, folders: dict[str, str]) -> ApiUnderTest:
    return start_api(**folders)


def train(visit: Visit, epochs: int):
    page = visit.open("#/finetune")
    page.wait_for_selector("#readiness:not(:empty)")
    page.check("#dataset-replace")
    page.set_input_files("#dataset-file", SAMPLE)
    wait_until(page, "() => document.querySelector('#dataset-state').textContent.includes('uploaded')")
    page.fill("#epochs", str(epochs))
    page.click("#train")
    page.wait_for_selector(".loss")
    return page


def test_training_on_an_upload_draws_its_losses(visit: Visit, folders):
    page = train(visit, epochs=60)
    first = page.inner_text("#losses .values")
    assert "loss " in first
    wait_until(page, "old => document.querySelector('#losses .values').textContent !== old", first)
    assert page.inner_text("#training-state").startswith("Training the model, pass ")
    visit.shoot("finetune")
    page.wait_for_selector("#trained")
    assert (Path(folders["KRONOS_DATA_FOLDER"]) / "sample.csv").read_bytes() == SAMPLE.read_bytes()
    assert page.inner_text("#trained strong") == "mine@1"
    page.click("#trained button")
    wait_until(page, "() => document.querySelector('#model').value === 'mine@1'")
    assert page.locator("#model").is_visible()
    page.click("header nav a[href='#/finetune']")
    assert page.inner_text("#dataset-state") == "sample.csv is uploaded: 512 bars."


def test_training_can_be_cancelled(visit: Visit):
    page = train(visit, epochs=900)
    page.click("#stop-training")
    page.wait_for_selector("#training-problem")
    assert "(CANCELLED)" in page.inner_text("#training-problem")


def test_an_unusable_file_is_refused(visit: Visit, tmp_path: Path):
    path = tmp_path / "bad.csv"
    path.write_text("a,b\n1,2\n")
    visit.expected_failures = 2
    page = visit.open("#/finetune")
    page.set_input_files("#dataset-file", path)
    page.wait_for_selector("#dataset-problem")
    assert "(TRAINING_DATA_INVALID)" in page.inner_text("#dataset-problem")
    bars = "".join(f"0{day}/01/2024,1,2,1,1\n" for day in range(1, 8))
    path.write_text(f"date,open,high,low,close\n{bars}")
    page.set_input_files("#dataset-file", path)
    page.locator("#dataset-problem", has_text="the day or the month first").wait_for()
    page.fill("#dataset-date-format", "%d/%m/%Y")
    page.set_input_files("#dataset-file", path)
    page.locator("#dataset-state", has_text="bad.csv is uploaded: 7 bars").wait_for()


def test_training_does_not_start_without_a_file(open_page: OpenPage, start_api: StartApi):
    visit = open_page(start_api())  # its data folder is empty
    requests: list[str] = []
    visit.page.on("request", lambda request: requests.append(request.url.removeprefix(visit.url)))
    page = visit.open("#/finetune")
    page.wait_for_selector("#worker-rows .worker", state="attached")
    page.click("#train")
    page.wait_for_selector("#finetune-form-problem")
    assert page.inner_text("#finetune-form-problem") == "Upload a file of candles first."
    page.set_input_files("#dataset-file", SAMPLE)
    wait_until(page, "() => document.querySelector('#dataset').value === 'sample.csv'")
    page.fill("#finetune-name", "Not A Name")
    page.click("#train")
    page.wait_for_selector("#finetune-form-problem")
    assert page.inner_text("#finetune-form-problem").startswith("Name of the new model: ")
    assert page.locator("#training").is_hidden()
    assert "v1/datasets" in requests
    assert "v1/finetunes" not in requests
