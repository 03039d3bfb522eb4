"""Several models in one worker: jobs name theirs, run at once, and make each other room."""

import time

import numpy as np
import pytest

from kronos_client.contract.errors import ErrorCode, JobError
from tests.integration.conftest import PARITY, StartWorker, WorkerUnderTest, submit_long_job
from tests.waiting import WAIT_S

OWN = str(PARITY / "model")
PAIR = str(PARITY)  # the own model once more, under another name
TINY = "kronos-tiny"
GONE = "/nowhere/at-all"


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker) -> WorkerUnderTest:
    return start_worker(KRONOS_MODELS=f"{TINY},{PAIR},{GONE}={TINY}").wait_until_ready()


def closes(result) -> np.ndarray:
    return np.array(result.series[0].mean["close"])


def models_of(worker: WorkerUnderTest) -> list[str]:
    (announced,) = worker.announcements()
    return [model["id"] for model in announced["models"]]


def test_jobs_for_two_models_run_at_once_and_neither_waits_for_the_other(worker, client, candles):
    warm = client.forecast(candles[:40], pred_len=4, seed=1, model=TINY, timeout_s=WAIT_S)
    assert warm.model.id == warm.model.tokenizer_id == TINY
    long = submit_long_job(client, candles, model=OWN)
    while long.state().name != "PROGRESS":
        time.sleep(0.02)
    short = [client.submit(candles[:40], pred_len=4, seed=1, model=TINY) for _ in range(3)]
    for handle in short:
        np.testing.assert_allclose(closes(handle.wait(WAIT_S)), closes(warm), rtol=1e-5)
    assert long.state().name == "PROGRESS"
    long.cancel()
    with pytest.raises(JobError):
        long.wait(WAIT_S)


def test_the_same_weights_under_another_name_give_the_same_forecast(worker, client, candles):
    """Dropped and loaded anew in between, since two models are all that there is room for."""
    jobs = [(None, OWN), (PAIR, PAIR), (TINY, TINY), (PAIR, PAIR)]
    results = []
    for model, served in jobs:
        result = client.forecast(candles[:40], pred_len=4, seed=2, model=model, timeout_s=WAIT_S)
        assert result.model.id == served
        results.append(closes(result))
    own, pair, tiny, pair_again = results
    np.testing.assert_allclose(pair, own, rtol=1e-5)
    np.testing.assert_allclose(pair_again, own, rtol=1e-5)
    assert not np.allclose(tiny, own, rtol=1e-3)
    deadline = time.monotonic() + WAIT_S
    while models_of(worker) != [OWN, PAIR] and time.monotonic() < deadline:
        time.sleep(0.1)
    assert models_of(worker) == [OWN, PAIR]


def test_a_model_for_which_no_place_is_free_is_a_coded_error(worker, client, candles):
    busy = submit_long_job(client, candles, model=TINY)
    while busy.state().name != "PROGRESS":
        time.sleep(0.02)
    with pytest.raises(JobError) as refused:
        client.forecast(candles[:40], pred_len=4, model=PAIR, timeout_s=WAIT_S)
    assert (refused.value.code, refused.value.field) == (ErrorCode.MODEL_CAPACITY, "model")
    busy.cancel()
    with pytest.raises(JobError):
        busy.wait(WAIT_S)
    assert client.forecast(candles[:40], pred_len=4, model=PAIR, timeout_s=WAIT_S).model.id == PAIR


@pytest.mark.parametrize(
    ("model", "code"), [("other/model", ErrorCode.MODEL_NOT_ALLOWED), (GONE, ErrorCode.CHECKPOINT_MISSING)]
)
def test_a_model_that_cannot_be_loaded_fails_only_its_job(worker, client, candles, model, code):
    for _ in range(2):  # the second time is no worse than the first
        with pytest.raises(JobError) as refused:
            client.forecast(candles[:40], pred_len=4, model=model, timeout_s=WAIT_S)
        assert (refused.value.code, refused.value.field) == (code, "model")
    assert client.forecast(candles[:40], pred_len=4, timeout_s=WAIT_S).model.id == OWN


def test_more_bars_than_the_named_model_can_see_are_refused_by_the_worker(worker, client, candles):
    with pytest.raises(JobError) as refused:
        client.forecast(candles[:40], pred_len=129, model=TINY, timeout_s=WAIT_S)
    assert (refused.value.code, refused.value.field) == (ErrorCode.PRED_LEN_TOO_LONG, "pred_len")
