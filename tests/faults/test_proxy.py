"""The proxy: what it forwards, and which requests it answers itself."""

import time
from collections.abc import Iterator

import pytest
from redis import Redis
from redis.exceptions import RedisError, ResponseError

from kronos_client.contract.names import job_key
from kronos_client.redis.job_store import JobStore
from tests.faults.proxy import FaultyProxy, Request, Rule
from tests.faults.redis_under_fault import RedisUnderFault

BUSY = "BUSY Redis is busy running a script."


@pytest.fixture(params=[2, 3])
def behind(request: pytest.FixtureRequest, proxy: FaultyProxy) -> Iterator[Redis]:
    """A client behind the proxy, by both versions of the protocol."""
    with Redis.from_url(proxy.url, decode_responses=True, protocol=request.param, retry=None) as client:
        yield client


def is_command(*names: str):
    return lambda request: request.command in names


def test_answers_stay_in_order(behind: Redis, proxy: FaultyProxy):
    proxy.rules = [Rule(BUSY, is_command("INCRBY"))]
    with behind.pipeline(transaction=False) as pipe:
        pipe.set("a", "1").incr("a").get("a").incr("a").hset("h", mapping={"x": "y"}).hgetall("h").incr("a")
        answers = pipe.execute(raise_on_error=False)
    refused = [isinstance(answer, ResponseError) for answer in answers]
    assert refused == [False, True, False, True, False, False, True]
    assert (answers[2], answers[5]) == ("1", {"x": "y"})
    assert behind.blpop(["nothing"], timeout=0.01) is None


def test_a_command_is_refused_before_or_after_it_is_executed(
    behind: Redis, proxy: FaultyProxy, redis: RedisUnderFault
):
    for is_after in (False, True):
        proxy.rules = [rule := Rule(BUSY, is_command("INCRBY"), is_after=is_after)]
        with pytest.raises(RedisError, match="busy running"):
            behind.incr(f"count-{is_after}")
        assert redis.connection.get(f"count-{is_after}") == ("1" if is_after else None)
        assert rule.num_hits == 1


def test_a_rule_ends(behind: Redis, proxy: FaultyProxy):
    proxy.rules = [Rule(BUSY, until=time.monotonic())]
    assert behind.ping()


def test_a_transaction_with_a_refused_command_is_not_executed(
    behind: Redis, proxy: FaultyProxy, redis: RedisUnderFault
):
    for name, is_after, expected in (
        ("INCRBY", False, None),
        ("INCRBY", True, None),
        ("EXEC", False, None),
        ("EXEC", True, "5"),
    ):
        redis.connection.flushall()
        proxy.rules = [Rule(BUSY, is_command(name), is_after=is_after)]
        with behind.pipeline() as pipe, pytest.raises(RedisError):
            pipe.set("a", "4").incr("a").execute()
        assert redis.connection.get("a") == expected
        proxy.rules = []
        assert behind.pipeline().set("b", "1").get("b").execute() == [True, "1"]


def test_subscriptions_pass_and_can_be_refused(behind: Redis, proxy: FaultyProxy, redis: RedisUnderFault):
    with behind.pubsub() as channel:
        channel.psubscribe("a*")
        channel.subscribe("b", "c")
        kinds = [channel.get_message(timeout=5)["type"] for _ in range(3)]
        assert kinds == ["psubscribe", "subscribe", "subscribe"]
        redis.connection.publish("ab", "hello")
        assert channel.get_message(timeout=5)["data"] == "hello"
        channel.ping()
        assert channel.get_message(timeout=5)  # the answer
        proxy.rules = [Rule(BUSY, is_command("SUBSCRIBE"))]
        channel.subscribe("d")
        with pytest.raises(RedisError, match="busy running"):
            channel.get_message(timeout=5)
        redis.connection.publish("ab", "again")
        assert channel.get_message(timeout=5)["data"] == "again"


def test_our_scripts_are_known_by_name(proxy: FaultyProxy, redis: RedisUnderFault):
    store = JobStore(Redis.from_url(proxy.url, decode_responses=True, retry=None), 60)
    proxy.rules = [Rule(BUSY, lambda request: request.script == "cancel")]
    with pytest.raises(RedisError, match="busy running"):
        store.request_cancel("a")
    assert redis.connection.hlen(job_key("a")) == 0
    proxy.rules = [Rule("NOSCRIPT No matching script", lambda request: request.script == "count")]
    assert store.request_cancel("a")


def test_an_answer_that_is_lost_silences_its_connection_alone(
    behind: Redis, proxy: FaultyProxy, redis: RedisUnderFault
):
    def is_b(request: Request) -> bool:
        return request.command == "SET" and b"bb" in request.raw

    proxy.rules = [Rule(None, is_b)]
    behind.connection_pool.connection_kwargs["socket_timeout"] = 0.2
    with pytest.raises(RedisError):
        behind.set("bb", "1")
    assert redis.connection.get("bb") == "1"
    assert behind.set("a", "1")
