"""Models that are registered while a worker runs: jobs name them, and nothing is started anew."""

import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.registry.model_registry import ModelRegistry, promote
from kronos_model.bars.columns import CLOSE, to_bars
from kronos_model.checkpoints.names import BUNDLED_FOLDER
from kronos_model.evaluation.calibration import references
from tests.integration.conftest import PARITY, StartWorker, WorkerUnderTest
from tests.waiting import WAIT_S

OWN = str(PARITY / "model")
TINY = "kronos-tiny"
MAX_CONTEXT = 128


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shared") / "models"


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker, folder: Path) -> WorkerUnderTest:
    """A worker that started before the model folder existed."""
    settings = {"KRONOS_MODEL_FOLDER": str(folder), "KRONOS_MODELS": TINY, "KRONOS_MAX_MODELS": "3"}
    return start_worker(**settings).wait_until_ready()


@pytest.fixture
def registry(folder: Path) -> ModelRegistry:
    return ModelRegistry(folder)


def register(
    registry: ModelRegistry, checkpoint: Path, name: str, job_id: str, max_context: int = MAX_CONTEXT
):
    return registry.register(
        checkpoint, name, job_id=job_id, fingerprint="f", metadata={"max_context": max_context}
    )


def forecast(client, candles, model: str | None, pred_len: int = 4):
    return client.forecast(candles[:40], pred_len=pred_len, seed=2, model=model, timeout_s=WAIT_S)


def closes(result) -> np.ndarray:
    return np.array(result.series[0].mean["close"])


def refusal(client, candles, model: str, pred_len: int = 4) -> JobError:
    with pytest.raises(JobError) as refused:
        forecast(client, candles, model, pred_len)
    return refused.value


def announced(worker: WorkerUnderTest, expected: set[str]) -> bool:
    """Whether the worker soon announces that it holds these."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        (status,) = worker.announcements()
        if {model["id"] for model in status["models"]} == expected:
            return True
        time.sleep(0.1)
    return False


def test_a_model_is_used_as_soon_as_it_is_registered_and_so_is_its_next_version(
    worker, client, candles, registry
):
    assert refusal(client, candles, "desk").code == ErrorCode.MODEL_NOT_ALLOWED
    register(registry, PARITY, "desk", "job-1")
    own = forecast(client, candles, None)
    assert own.model.id == OWN
    for name in ("desk", "desk@1"):
        first = forecast(client, candles, name)
        info = first.model.model_dump()
        assert info == {"id": "desk", "revision": "1", "tokenizer_id": "desk", "tokenizer_revision": "1"}
        np.testing.assert_allclose(closes(first), closes(own), rtol=1e-5)
    register(registry, BUNDLED_FOLDER / TINY, "desk", "job-2")
    second = forecast(client, candles, "desk")
    assert (second.model.id, second.model.revision) == ("desk", "2")
    older = forecast(client, candles, "desk@1")
    assert older.model.revision == "1"
    np.testing.assert_allclose(closes(older), closes(own), rtol=1e-5)
    assert announced(worker, {OWN, "desk@1", "desk@2"})
    tiny = forecast(client, candles, TINY)  # which makes one of them go
    np.testing.assert_allclose(closes(second), closes(tiny), rtol=1e-5)
    assert not np.allclose(closes(second), closes(own), rtol=1e-3)
    assert worker.process.poll() is None


def test_a_promoted_version_is_used_at_a_feeds_next_bar(worker, client, candles, registry):
    bars = candles.rename(columns={"timestamps": "ds"}).assign(unique_id="s1")
    first, second = (
        register(registry, source, "fed", str(source)) for source in (PARITY, BUNDLED_FOLDER / TINY)
    )
    promote(first, forced=True)
    after = "0"
    with client.feed("f", pred_len=2, model="fed") as feed:
        for version, promoted, revision in ((1, first, "1"), (2, first, "1"), (3, second, "2")):
            promote(promoted, forced=True)
            feed.append(bars[: 40 + version])
            (update,) = feed.next_updates(after, WAIT_S)
            after = update.id
            assert (update.version, update.model.id, update.model.revision) == (version, "fed", revision)


def test_a_calibrated_model_corrects_the_quantiles_of_jobs_that_ask(worker, client, candles, registry):
    calibration = {
        "method": "split_conformal", "lookback": 32, "horizon": 4, "sample_count": 3, "num_windows": 50,
        "first": "2024-01-01", "last": "2024-06-01", "fitted_at": "2024-06-02T00:00:00Z",
        "levels": [0.1, 0.9], "weights": {"close": 1.0}, "shifts": {"close": [[-2.0] * 4, [2.0] * 4]},
    }  # fmt: skip
    metadata = {"max_context": MAX_CONTEXT, "calibration": calibration}
    registry.register(PARITY, "sure", job_id="sure", fingerprint="f", metadata=metadata)
    asked = {"pred_len": 3, "seed": 2, "model": "sure", "sample_count": 3, "quantiles": (0.1, 0.9)}
    plain = client.forecast(candles[:40], lookback=32, timeout_s=WAIT_S, **asked)
    result = client.forecast(candles[:40], calibrated=True, timeout_s=WAIT_S, **asked)
    assert (plain.calibration, result.calibration.num_windows) == (None, 50)
    assert result.series[0].lookback == 32
    hashes = [one.series[0].manifest.calibration for one in (plain, result)]
    assert (hashes[0], len(hashes[1])) == (None, 24)
    assert result.series[0].mean == plain.series[0].mean
    scale = references(to_bars(candles[8:40])[None])[1][0, CLOSE]
    for level, correction in (("0.1", -2), ("0.9", 2)):
        ours, theirs = (np.array(one.series[0].quantiles[level]["close"]) for one in (result, plain))
        np.testing.assert_allclose(ours - theirs, correction * scale, rtol=1e-4)
    for wrong in ({"pred_len": 5}, {"model": TINY}, {"model": None}):
        with pytest.raises(JobError, match="NOT_CALIBRATED"):
            client.forecast(candles[:40], calibrated=True, timeout_s=WAIT_S, **asked | wrong)


def test_a_registered_model_may_be_asked_for_as_many_bars_as_it_was_trained_to_see(
    worker, client, candles, registry
):
    register(registry, PARITY, "short", "job-short", max_context=48)
    error = refusal(client, candles, "short", pred_len=49)
    assert (error.code, error.field, error.details["limit"]) == (ErrorCode.PRED_LEN_TOO_LONG, "pred_len", 48)
    assert len(closes(forecast(client, candles, "short", pred_len=48))) == 48
    assert refusal(client, candles, None, pred_len=MAX_CONTEXT + 1).code == ErrorCode.PRED_LEN_TOO_LONG


@pytest.mark.parametrize(
    "name",
    ["unknown", "desk@9", "../desk", "../../models/desk", "/etc", "desk/../desk", "desk/1", "desk@../1",
     "desk@1/../1", ".", "..", "~", "desk@0"],
)  # fmt: skip
def test_an_unregistered_name_is_refused(worker, client, candles, registry, name):
    register(registry, PARITY, "desk", "job-1")
    error = refusal(client, candles, name)
    assert (error.code, error.field) == (ErrorCode.MODEL_NOT_ALLOWED, "model")
    assert error.details == {"allowed": [OWN, TINY]}
    assert "kronos models" in error.message


def test_a_path_to_a_registered_model_is_refused_too(worker, client, candles, registry):
    folder = register(registry, PARITY, "desk", "job-1").folder
    assert refusal(client, candles, str(folder)).code == ErrorCode.MODEL_NOT_ALLOWED


def test_a_model_whose_files_were_changed_fails_its_jobs_alone(worker, client, candles, registry):
    for name, file in (("tampered", "model/model.safetensors"), ("damaged", "metadata.json")):
        folder = register(registry, PARITY, name, f"job-{name}").folder
        with (folder / file).open("ab") as content:
            content.write(b"more")
        error = refusal(client, candles, name)
        assert (error.code, error.field) == (ErrorCode.CHECKPOINT_INVALID, "model")
        assert file in error.message
    assert forecast(client, candles, None).model.id == OWN


def test_a_model_that_is_deleted_serves_on_and_is_refused_by_a_worker_that_starts_then(
    start_worker, worker, client, candles, registry, folder
):
    register(registry, PARITY, "gone", "job-gone")
    before = forecast(client, candles, "gone")
    shutil.rmtree(folder / "gone")
    after = forecast(client, candles, "gone@1")
    np.testing.assert_allclose(closes(after), closes(before), rtol=1e-5)
    worker.stop()
    register(registry, PARITY, "kept", "job-kept")
    own = {"KRONOS_MODEL": "kept", "KRONOS_TOKENIZER": "", "KRONOS_MODEL_FOLDER": str(folder)}
    start_worker(**own).wait_until_ready()
    assert refusal(client, candles, "gone").code == ErrorCode.MODEL_NOT_ALLOWED
    result = forecast(client, candles, None)
    assert (result.model.id, result.model.revision) == ("kept", "1")
    np.testing.assert_allclose(closes(result), closes(before), rtol=1e-5)
