"""The control command that makes a worker load a model, and its answers."""

from types import SimpleNamespace

import pytest

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.model_info import ModelInfo
from worker.inference.model_cache import CacheEntry
from worker.tasks import controls, status

INFO = ModelInfo(id="m", revision=None, tokenizer_id="m", tokenizer_revision=None)


class SlowModels:
    """Loads when the test lets it."""

    def __init__(self, error: Exception | None = None) -> None:
        self.entry = CacheEntry("m")
        self.num_loads = 0
        self.num_held = 0
        self._error = error

    def find(self, name: str) -> str:
        if self._error is not None:
            raise self._error
        return name

    def hold(self, wanted: str) -> CacheEntry:
        self.num_loads += 1
        self.num_held += 1
        return self.entry

    def release(self, entry: CacheEntry) -> None:
        self.num_held -= 1

    def load(self) -> None:
        self.entry.loading.set_result(SimpleNamespace(info=INFO))


def wait_for(requests: controls.LoadRequests, models, ask: str) -> dict:
    while (answer := requests.answer(models, "m", ask))["state"] == "loading":
        pass
    return answer


def test_it_answers_at_once_and_the_same_ask_gets_the_outcome():
    requests, models = controls.LoadRequests(), SlowModels()
    assert requests.answer(models, "m", "1") == requests.answer(models, "m", "1") == {"state": "loading"}
    models.load()
    assert wait_for(requests, models, "1") == {"state": "ready", "model": INFO.model_dump()}
    assert (models.num_loads, models.num_held) == (1, 0)


@pytest.mark.parametrize(
    "error", [JobError(ErrorCode.MODEL_NOT_ALLOWED, "not that one", "model"), RuntimeError("x")]
)
def test_a_failed_load_is_answered_and_the_next_ask_tries_again(error):
    requests, models = controls.LoadRequests(), SlowModels(error)
    answer = wait_for(requests, models, "1")
    assert answer["state"] == "failed"
    assert answer["error"]["code"] == getattr(error, "code", "INTERNAL")
    better = SlowModels()
    better.load()
    assert wait_for(requests, better, "2")["state"] == "ready"


def test_asks_beyond_what_may_wait_are_refused():
    requests, models = controls.LoadRequests(), SlowModels()
    for ask in range(controls.MAX_LOADING):
        assert requests.answer(models, "m", str(ask))["state"] == "loading"
    assert requests.answer(models, "m", "more")["error"]["code"] == "MODEL_CAPACITY"
    models.load()


@pytest.mark.parametrize(
    "arguments", [{}, {"model": 3, "ask": "a"}, {"model": "m" * 201, "ask": "a"}, {"model": "m", "ask": ""}]
)
def test_arguments_of_another_form_are_refused(arguments):
    assert controls.load_model(None, **arguments)["error"]["code"] == "BAD_VALUE"


@pytest.mark.parametrize(("args", "kwargs", "field"), [((), {"verbose": True}, "verbose"), ((1,), {}, None)])
def test_the_status_task_refuses_arguments(args, kwargs, field):
    with pytest.raises(JobError) as refused:
        status.status(*args, **kwargs)
    assert (refused.value.code, refused.value.field) == (ErrorCode.UNKNOWN_FIELD, field)
