"""What is public of each client and handle: the same, to be awaited or not, real or for apps' tests."""

import inspect
import re

import pytest

import kronos_client
from kronos_client.aio import AsyncForecastClient, AsyncHandle
from kronos_client.client import ForecastClient
from kronos_client.contract.backtest import BacktestJob
from kronos_client.contract.errors import JobError
from kronos_client.core.handle import JobHandle
from kronos_client.core.options import ForecastOptions
from kronos_client.testing import FakeAsyncForecastClient, FakeForecastClient
from kronos_model.bars.synthetic import candles

STEERING = {
    "fail", "fake", "finish", "finish_feeds", "hold", "jobs", "live_workers", "lose",
    "refuse_next", "set_progress",
}  # fmt: skip
"""What only an app's test needs."""

OTHER_NAMES = {"aclose": "close"}
"""As asyncio's own objects have it."""


def public(one: type) -> dict[str, object]:
    """What a class has, by its name in the client that is not asynchronous."""
    names = {name for name in dir(one) if not name.startswith("_")}
    return {OTHER_NAMES.get(name, name): getattr(one, name) for name in names}


def parameters(method: object) -> list[tuple[str, object, object]]:
    """Names, kinds and defaults: callers need not know which client it is."""
    assert callable(method)
    return [(one.name, one.kind, one.default) for one in inspect.signature(method).parameters.values()]


PAIRS = [
    (ForecastClient, AsyncForecastClient),
    (ForecastClient, FakeForecastClient),
    (AsyncForecastClient, FakeAsyncForecastClient),
    (JobHandle, AsyncHandle),
]


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_both_have_the_same_methods_with_the_same_arguments(one, other):
    ours, theirs = public(one), public(other)
    assert ours.keys() == theirs.keys() - STEERING
    for name, method in ours.items():
        if callable(method):
            assert parameters(method) == parameters(theirs[name]), name


@pytest.mark.parametrize("one", [AsyncForecastClient, AsyncHandle])
def test_what_asks_redis_is_awaited(one):
    at_once = {"forecast_handle", "finetune_handle", "backtest_handle"}
    for name, method in public(one).items():
        if callable(method) and name not in at_once:
            made = inspect.iscoroutinefunction(method) or "AsyncGenerator" in str(
                inspect.signature(method).return_annotation
            )
            assert made, name


def test_an_instance_has_no_more_than_its_class():
    fake = FakeForecastClient()
    assert {name for name in vars(fake) if not name.startswith("_")} <= STEERING
    assert fake.redis_url.startswith("redis://")
    assert FakeAsyncForecastClient(fake).redis_url == fake.redis_url


@pytest.mark.parametrize(
    "name",
    ["forecast", "submit", "forecast_many", "predict_df", "backtest", "submit_backtest", "finetune", "feed"],
)
def test_help_shows_each_option_with_type_and_description(name):
    method = getattr(ForecastClient, name)
    shown = inspect.signature(method).parameters.values()
    assert not any(one.kind is inspect.Parameter.VAR_KEYWORD for one in shown)
    for one in shown:
        if one.kind is inspect.Parameter.KEYWORD_ONLY:
            assert one.annotation is not inspect.Parameter.empty
            assert re.search(rf"^ +(\w+, )*{one.name}(, \w+)*: \S", method.__doc__, re.MULTILINE), one.name


def test_a_feed_does_not_show_what_belongs_to_one_job_and_refuses_it():
    refused = (
        ForecastOptions.__annotations__.keys() - inspect.signature(ForecastClient.feed).parameters.keys()
    )
    assert refused == {"series_ids", "timestamps", "future_timestamps", "paths", "stream", "deadline_s"}
    for name in refused:
        with pytest.raises(JobError, match=f"BAD_VALUE: {name} belongs to one job: leave it out"):
            FakeForecastClient().feed("f", pred_len=5, **{name: True})


def test_shown_defaults_are_what_a_job_has():
    fake = FakeForecastClient()
    fake.submit(candles(seed=1, bars=60).as_dict(), pred_len=5, job_id="a")
    job = fake.jobs["a"]
    sent = job["sampling"] | job["output"] | job
    for one in inspect.signature(ForecastClient.submit).parameters.values():
        if one.name in sent.keys() - {"pred_len", "lookback"}:  # None is "auto"
            assert sent[one.name] == (list(one.default) if isinstance(one.default, tuple) else one.default)


def test_shown_defaults_of_a_backtest_are_its_jobs():
    fields = BacktestJob.model_fields
    for method in (ForecastClient.backtest, ForecastClient.submit_backtest):
        for one in inspect.signature(method).parameters.values():
            if one.name in fields and one.name not in ("data", "reading", "lookback", "models"):
                assert one.default == fields[one.name].default, one.name


@pytest.mark.parametrize("name", sorted(public(ForecastClient).keys() - {"redis_url"}))
def test_no_shown_default_stands_for_another_one(name):
    shown = inspect.signature(getattr(ForecastClient, name)).parameters
    assert not [name for name, one in shown.items() if one.default is ...]
    if {"in_order", "retry_for_s"} <= shown.keys():
        assert shown["retry_for_s"].default == 600


def test_the_package_lists_what_is_public_and_nothing_else():
    assert dir(kronos_client) == sorted([*kronos_client.__all__, "__version__"])
    assert all(getattr(kronos_client, name) for name in dir(kronos_client))
