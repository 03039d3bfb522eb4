"""KRONOS_REDIS_MIN_REPLICAS: nothing counts as accepted before so many replicas have it."""

from pathlib import Path

import pandas as pd
import pytest
from redis import Redis

from kronos_cli.stack.local_redis import LocalRedis
from kronos_client.client import ForecastClient
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import result_key
from kronos_client.feeds.feed import Feed
from kronos_client.redis.connection import NotReplicated, connect
from kronos_client.redis.job_store import Ending, JobStore
from kronos_client.settings import ClientSettings
from kronos_model.bars.synthetic import candles
from tests.waiting import await_true

BARS = pd.DataFrame(candles(1, 60).as_dict())


@pytest.fixture
def replica(redis_server: LocalRedis, tmp_path: Path):
    """A replica of the module's Redis, for one test."""
    with (
        LocalRedis(data=tmp_path / "replica") as server,
        connect(server.url) as redis,
        connect(redis_server.url) as primary,
    ):
        password = primary.connection_pool.connection_kwargs["credential_provider"].get_credentials()[0]
        redis.config_set("masterauth", password)
        redis.config_set("repl-diskless-sync-delay", 0)
        primary.config_set("repl-diskless-sync-delay", 0)
        host, port = redis_server.address.split(":")
        redis.replicaof(host, port)
        await_true(lambda: redis.info("replication")["master_link_status"] == "up", "the replica follows")
        yield redis


def settings(server: LocalRedis, num_replicas: int) -> ClientSettings:
    return ClientSettings(redis_url=server.url, redis_min_replicas=num_replicas)


def outcome_of(redis: Redis, job_id: str) -> str:
    return JobStore(redis, 60).end([Ending(job_id, '{"status": "FAILURE"}')])[0]


def test_a_job_that_no_replica_has_is_uncertain(redis_server: LocalRedis):
    with ForecastClient(settings=settings(redis_server, 1)) as client:
        with pytest.raises(JobError, match="0 of 1 replicas") as caught:
            client.submit(BARS, pred_len=2, job_id="job-a")
        assert caught.value.code == ErrorCode.ENQUEUE_UNCERTAIN
        with pytest.raises(JobError, match="0 of 1 replicas"):  # it is stored, and still counts only there
            client.submit(BARS, pred_len=2, job_id="job-a")


def test_a_job_that_a_replica_has_is_accepted(redis_server: LocalRedis, replica: Redis):
    with ForecastClient(settings=settings(redis_server, 1)) as client:
        handle = client.submit(BARS, pred_len=2)
        assert replica.exists(f"kronos:job:{handle.id}")
        with (
            pytest.raises(JobError, match="1 of 2 replicas"),
            ForecastClient(settings=settings(redis_server, 2)) as more,
        ):
            more.submit(BARS, pred_len=2)


def test_an_outcome_counts_only_with_replicas(redis_server: LocalRedis):
    with connect(redis_server.url, min_replicas=1) as redis, connect(redis_server.url) as plain:
        for _ in range(2):  # the second attempt finds it stored
            with pytest.raises(NotReplicated):
                outcome_of(redis, "job-b")
        assert plain.exists(result_key("job-b"))


def test_an_outcome_that_a_replica_has(redis_server: LocalRedis, replica: Redis):
    with connect(redis_server.url, min_replicas=1) as redis:
        assert outcome_of(redis, "job-c") == "stored"
        assert replica.exists(result_key("job-c"))
        assert outcome_of(redis, "job-c") == "ended"


def test_bars_of_a_feed_count_only_with_replicas(redis_server: LocalRedis):
    bars = BARS.rename(columns={"timestamps": "ds"}).assign(unique_id="a")
    with Feed.open("plain", settings=settings(redis_server, 0), pred_len=2) as feed:
        feed.append(bars)
    with (
        pytest.raises(JobError, match="0 of 1 replicas"),
        Feed.open("new", settings=settings(redis_server, 1), pred_len=2),
    ):
        pass
