"""Checks of the Redis that jobs go through."""

import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from redis import Redis
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError

from kronos_cli.checks import Finding, Level
from kronos_cli.settings import CliSettings
from kronos_cli.stack.local_redis import MIN_VERSION
from kronos_client.contract.errors import JobError
from kronos_client.contract.names import DEAD_KEY
from kronos_client.redis.connection import connect, refuse_unusable
from kronos_client.redis.url import VERIFY, has_tls, hosts_of, place_of

LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
MAX_CLOCK_DIFFERENCE_S: Final = 2.0
MAX_MEMORY_SHARE: Final = 0.8
ALLOW: Final = "allow the command with ACL SETUSER; docs/operate/security.md lists each user's commands"


def redis_findings(settings: CliSettings) -> Iterator[Finding]:
    """Check that Redis answers and that it can hold jobs safely."""
    url = settings.redis_url.get_secret_value()
    with connect(url) as redis:
        answer = _reach(redis, url)
        yield answer
        if answer.level == "failed":
            return
        yield _transport(url)
        for check in (_clock, partial(_server, min_replicas=settings.redis_min_replicas), _dead_messages):
            try:
                yield from check(redis)
            except NoPermissionError as error:
                yield Finding("redis", "warning", f"this user may not run a check: {error}", ALLOW)
            except (RedisError, TypeError, ValueError) as error:
                remedy = "allow the commands INFO, TIME and LLEN in Redis and in any proxy"
                text = f"a check failed: {error or type(error).__name__}"
                yield Finding("redis", "warning", text, remedy)


def _reach(redis: Redis, url: str) -> Finding:
    place = place_of(url)
    started = time.perf_counter()
    try:
        redis.ping()
        refuse_unusable(redis)
    except JobError as error:
        return Finding("redis", "failed", f"{place}: {error.message}", "use one with cluster mode disabled")
    except AuthenticationError as error:
        remedy = "correct user and password in KRONOS_REDIS_URL: redis://USER:PASSWORD@HOST:6379/0"
        return Finding("redis", "failed", f"{place} refuses the password: {error}", remedy)
    except RedisError as error:
        remedy = "start it, or set KRONOS_REDIS_URL to a running one; `kronos up` starts one on this machine"
        remedy += ". If it needs TLS, the URL begins with rediss://"
        return Finding("redis", "failed", f"{place} does not answer: {error}", remedy)
    return Finding("redis", "ok", f"{place} answers in {1000 * (time.perf_counter() - started):.1f} ms")


def _transport(url: str) -> Finding:
    parts = urlsplit(url)
    if has_tls(url):
        is_verified = dict(parse_qsl(parts.query)).get(VERIFY) != "none"
        text = "TLS, and the server is verified" if is_verified else "TLS, but the server is not verified"
        remedy = f"remove {VERIFY}=none, and set KRONOS_REDIS_CA_FILE"
        return Finding("tls", "ok" if is_verified else "warning", text, remedy)
    hosts = hosts_of(url)
    if set(hosts) <= set(LOOPBACK):
        return Finding("tls", "ok", "no TLS, and none is needed on this machine")
    missing = "TLS" if parts.password else "TLS and password"
    remedy = "unless the network is private, use TLS and users (docs/operate/security.md)"
    return Finding("tls", "warning", f"no {missing} on the way to {', '.join(hosts)}", remedy)


def _clock(redis: Redis) -> Iterator[Finding]:
    before = time.time()
    seconds, microseconds = redis.time()
    after = time.time()
    difference_s = seconds + microseconds / 1e6 - (before + after) / 2
    is_off = abs(difference_s) > MAX_CLOCK_DIFFERENCE_S + (after - before) / 2
    side = "ahead of" if difference_s > 0 else "behind"
    text = f"Redis's clock is {abs(difference_s):.1f} s {side} this machine's"
    remedy = "set both clocks by NTP: waiting times and logs are wrong by this difference"
    yield Finding("clock", "warning" if is_off else "ok", text, remedy)


def _server(redis: Redis, min_replicas: int) -> Iterator[Finding]:
    info: Any = redis.info()
    yield from server_findings(info, min_replicas)


def server_findings(info: Mapping[str, Any], min_replicas: int = 0) -> Iterator[Finding]:
    """Check version, role, replicas, memory and persistence in the answer to INFO."""
    version = str(info.get("redis_version", "0"))
    is_old = tuple(int(part) for part in version.split(".") if part.isdigit()) < MIN_VERSION
    remedy = f"install {MIN_VERSION[0]}.{MIN_VERSION[1]} or newer"
    yield Finding("redis version", "failed" if is_old else "ok", f"Redis {version}", remedy)
    is_replica = info.get("role") == "slave"
    text = "a replica, which accepts no writes" if is_replica else "accepts writes"
    remedy = "set KRONOS_REDIS_URL to its primary"
    yield Finding("redis role", "failed" if is_replica else "ok", text, remedy)
    if min_replicas:
        num_replicas = int(info.get("connected_slaves", 0))
        text = f"{num_replicas} of the {min_replicas} that KRONOS_REDIS_MIN_REPLICAS asks for"
        remedy = "start Redis's replicas, or lower KRONOS_REDIS_MIN_REPLICAS: no job is accepted until then"
        yield Finding("replicas", "failed" if num_replicas < min_replicas else "ok", text, remedy)
    yield from _memory(info)
    yield _persistence(info)


def _memory(info: Mapping[str, Any]) -> Iterator[Finding]:
    limit, used = int(info.get("maxmemory", 0)), int(info.get("used_memory", 0))
    policy = str(info.get("maxmemory_policy", "noeviction"))
    level: Level = "ok" if policy == "noeviction" else "failed" if limit else "warning"
    text = f"maxmemory-policy {policy}" + ("" if limit else ", no maxmemory")
    remedy = "set maxmemory-policy noeviction (CONFIG SET, redis.conf), or accepted jobs are dropped"
    yield Finding("eviction", level, text, remedy)
    if limit:
        level = "warning" if used / limit > MAX_MEMORY_SHARE else "ok"
        text = f"{used / limit:.0%} of {limit / 2**20:,.0f} MiB in use"
        remedy = "raise Redis's maxmemory, or lower KRONOS_MAX_QUEUE_JOBS or KRONOS_RESULT_TTL_S"
        yield Finding("memory", level, text, remedy)


def _persistence(info: Mapping[str, Any]) -> Finding:
    states = {"append-only file": "aof_last_write_status", "snapshot": "rdb_last_bgsave_status"}
    for name, field in states.items():
        if info.get(field, "ok") != "ok":
            remedy = "read Redis's log; usually its disk is full"
            return Finding("persistence", "failed", f"the last {name} could not be written", remedy)
    if int(info.get("aof_enabled", 0)):
        return Finding("persistence", "ok", "append-only file")
    remedy = "set appendonly yes (CONFIG SET, redis.conf), or a restart of Redis loses queued jobs"
    return Finding("persistence", "warning", "no append-only file", remedy)


def _dead_messages(redis: Redis) -> Iterator[Finding]:
    num_messages = int(redis.llen(DEAD_KEY))
    remedy = "kronos queues --dead shows them; kronos queues --purge-dead deletes them"
    yield Finding("dead messages", "warning" if num_messages else "ok", str(num_messages or "none"), remedy)
