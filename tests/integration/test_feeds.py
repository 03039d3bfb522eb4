"""Feeds with real workers: bit-equal to jobs of one series, and current again after a worker was killed."""

import json
from pathlib import Path

import pandas as pd
import pytest
from celery import Celery
from click.testing import CliRunner, Result

from kronos_cli.main import cli
from kronos_cli.settings import get_settings
from kronos_client.client import ForecastClient
from kronos_client.contract.columns import encode_column
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import FEED_APPEND_TASK, result_key
from kronos_client.feeds.feed import Feed
from kronos_client.feeds.stored import feed_key, part_key
from kronos_client.redis.queues import DELIVERY_KEYS
from kronos_model.bars.columns import COLUMNS
from tests.integration.conftest import PACED, PARITY, WorkerUnderTest
from tests.waiting import WAIT_S, await_true

BARS = pd.read_csv(PARITY / "candles.csv").rename(columns={"timestamps": "ds"})
NAMES = [f"s{number}" for number in range(6)]
OPTIONS = {"pred_len": 6, "sample_count": 16, "events": ["close>last at end"]}


def bars(first: int, last: int) -> pd.DataFrame:
    """The bars of all series, each some bars later than the one before."""
    parts = [BARS[first + shift : last + shift].assign(unique_id=name) for shift, name in enumerate(NAMES)]
    return pd.concat(parts)


def versions(feed: Feed) -> dict[str, int]:
    known = {name: feed.forecast(name) for name in NAMES}
    return {name: update.version for name, update in known.items() if update and update.forecast}


@pytest.fixture
def start(redis, tmp_path, request):
    def start(name: str, command: list[str]) -> WorkerUnderTest:
        settings = {"KRONOS_VISIBILITY_TIMEOUT_S": f"{TIMEOUT_S}", "PACE_S": "1"}
        worker = WorkerUnderTest(redis, tmp_path / f"{name}.log", command, settings)
        request.addfinalizer(worker.stop)
        return worker.wait_until_ready()

    return start


TIMEOUT_S = 3
WORKER = ["celery", "-A", "worker.app", "worker", "--loglevel", "INFO"]


def replayed(document: object, *words: str | Path) -> Result:
    given = ["replay", "-", *map(str, words)]
    return CliRunner().invoke(cli, given, input=json.dumps(document), prog_name="kronos")


def test_numbers_are_those_of_jobs_of_one_series_and_of_replays(redis, start, tmp_path, monkeypatch):
    monkeypatch.setenv("KRONOS_REDIS_URL", redis.url)
    get_settings.cache_clear()
    start("worker", WORKER)
    with ForecastClient(redis.url) as client, client.feed("f", keep=COLUMNS, **OPTIONS) as feed:
        feed.append(bars(0, 50))
        await_true(lambda: len(versions(feed)) == len(NAMES), "all are forecast")
        for name in NAMES:
            update = feed.forecast(name)
            seed = update.forecast.seed
            result = client.forecast({name: feed.bars(name)}, seed=seed, timeout_s=WAIT_S, **OPTIONS)
            manifest = update.forecast.manifest
            assert manifest.feed == "f"
            alone = manifest.model_copy(update={"feed": None})
            assert result.series[0] == update.forecast.model_copy(update={"manifest": alone})
            assert (result.model, result.engine) == (update.model, update.engine)
        updates = [json.loads(feed.forecast(name).model_dump_json()) for name in NAMES[:2]]
        done = replayed([*updates, result.model_dump()])
        assert (done.exit_code, "no feed" in done.output) == (2, True)  # the job's bars are in none
        done = replayed(updates)
        equal = [f"{one['series']}, {one['last_time']}: equal\n" for one in updates]
        assert (done.exit_code, done.output) == (0, "".join(equal))
        feed.append(bars(49, 52).assign(close=lambda bars: bars["open"]))  # a correction
        done = replayed(updates[0])
        assert (done.exit_code, done.output.count("bars was hash=")) == (1, 1)
        feed.delete()
        done = replayed(updates)  # one whose bars are gone does not end the others
        assert (done.exit_code, done.output.count(": FEED_NOT_FOUND: ")) == (1, 2)
        BARS.to_csv(tmp_path / "candles.csv", index=False)
        done = replayed([*updates, result.model_dump()], "--candles", tmp_path / "candles.csv")
        assert (done.exit_code, done.output.count(": equal\n")) == (0, 3)
        updates[0]["forecast"]["manifest"]["seed"] += 1
        done = replayed(updates[0], "--candles", tmp_path / "candles.csv")
        assert (done.exit_code, "only the numbers" in done.output) == (1, True)
        get_settings.cache_clear()
        assert not set(client.forecast_handle(update.job_id).state().series)


def appended(app: Celery, **job: object) -> object:
    """The answer, or the error's code and field, of the task as any Celery client sends it."""
    result = app.send_task(FEED_APPEND_TASK, kwargs={"job": job}, queue="cpu")
    try:
        return result.get(timeout=WAIT_S)
    except Exception:  # noqa: BLE001 - our class is unknown to a foreign client
        code, _, field, _ = result.backend.get_task_meta(result.id)["result"].args
        return code, field


def test_a_plain_celery_client_appends_by_a_task(redis, start):
    start("worker", WORKER)
    app = Celery(broker=redis.url, backend=redis.url, set_as_current=False)
    part = BARS[:40]
    series = {name: part[name].tolist() for name in COLUMNS} | {"id": "A", "timestamps": [*part["ds"]]}
    with app, Feed.open("t", url=redis.url, **OPTIONS) as feed:
        counts = {"num_corrected": 0, "num_held_back": 0, "held_until": None, "warnings": []}
        assert appended(app, feed="t", series=[series]) == {"num_new": 40, "changed": ["A"]} | counts
        assert appended(app, feed="t", series=[series]) == {"num_new": 0, "changed": []} | counts
        as_base64 = series | {"close": str(encode_column(series["close"]))}
        assert appended(app, feed="t", series=[as_base64]) == {"num_new": 0, "changed": []} | counts
        await_true(lambda: feed.forecast("A"), "it is forecast")
        assert appended(app, feed="other", series=[series]) == ("FEED_NOT_FOUND", "name")
        assert appended(app, feed="t", series=[series, series]) == ("DUPLICATE_ID", "series.1.id")
        assert appended(app, feed="t", series=[series | {"close": [1]}]) == ("LENGTH_MISMATCH", "close")
        assert appended(app, feed="t", series=[]) == ("BAD_VALUE", "series")
        assert appended(app, feed="t", series=[series | {"volume": [-1.0] * 40}])[0] == "NEGATIVE_VOLUME"
        assert feed.ids() == ["A"]
        feed._store.redis.hdel(f"kronos:feed_series:{feed._uid}", "A")
        assert appended(app, feed="t", series=[series, series | {"id": "B"}])[0] == "FEED_GONE"
        assert len(feed.bars("B")["close"]) == 40


@pytest.mark.parametrize("part", ["pending", "updates"])
def test_a_job_ends_by_an_error_where_another_program_wrote_its_feeds_keys(redis, start, part):
    start("worker", WORKER)
    name = f"another-wrote-{part}"
    with Feed.open(name, url=redis.url, **OPTIONS) as feed, ForecastClient(redis.url) as client:
        raw, key = feed._store.redis, part_key(part, feed._uid)
        raw.set(key, "another program's")
        feed.append(bars(0, 50))
        job_id = f"feed-{feed._uid}-1"
        await_true(lambda: raw.exists(result_key(job_id)), "it is taken")
        with pytest.raises(JobError) as failed:
            client.forecast_handle(job_id).wait(timeout_s=WAIT_S)
        assert failed.value.code == ErrorCode.KEY_UNREADABLE
        assert key in failed.value.message
        places = ["cpu.feed\x06\x163", *DELIVERY_KEYS["forecast"][:2]]
        await_true(lambda: not raw.exists(*places), "no message is left")
        raw.delete(key)
        raw.hset(feed_key(name), "waiting", "feed-0 1.0")  # a minute later
        feed.append(bars(50, 51))
        await_true(lambda: len(versions(feed)) == len(NAMES), "all are forecast")


def test_a_killed_workers_series_are_forecast_within_two_visibility_timeouts(redis, start):
    killed = start("killed", [*WORKER, *PACED])
    with Feed.open("g", url=redis.url, **OPTIONS | {"sample_count": 128}) as feed:  # 4 series a job
        after = feed.last_update_id()
        feed.append(bars(0, 50))
        await_true(lambda: feed._store.redis.hlen(part_key("taken", feed._uid)), "it computes some of them")
        held = feed._store.redis.hgetall(part_key("taken", feed._uid))
        start("other", WORKER)
        await_true(lambda: len(versions(feed)) == 2, "it computes the other series")
        assert feed._store.redis.hgetall(part_key("taken", feed._uid)) == held
        killed.process.kill()
        killed.process.wait(WAIT_S)
        waited_s = await_true(lambda: len(versions(feed)) == len(NAMES), "all are forecast")
        assert waited_s < 2 * TIMEOUT_S
        feed.append(bars(50, 51))
        await_true(lambda: versions(feed) == dict.fromkeys(NAMES, 2), "all newest bars are forecast")
        seen = [(update.series, update.version) for update in feed.updates(after=after, timeout_s=0.1)]
        assert sorted(seen) == sorted({*seen})
