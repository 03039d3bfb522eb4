"""Checks of the Redis that jobs go through."""

import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from redis import Redis
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError

from kronos_cli.checks.finding import Finding
from kronos_cli.settings import CliSettings
from kronos_cli.stack.local_redis import MIN_VERSION
from kronos_client.contract.names import DEAD_KEY
from kronos_client.redis.connection import connect
from kronos_client.redis.tls import TLS_SCHEME, VERIFY

LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
MAX_CLOCK_DIFFERENCE_S: Final = 2.0
MAX_MEMORY_SHARE: Final = 0.8


def redis_findings(settings: CliSettings) -> list[Finding]:
    """Check that Redis answers and that it can hold jobs safely."""
    url = settings.redis_url.get_secret_value()
    with connect(url) as redis:
        answer = _reach(redis, url)
        if answer.level == "failed":
            return [answer]
        findings = [answer, _transport(url)]
        for check in (_clock, _server, _dead_messages):
            try:
                findings += check(redis)
            except NoPermissionError as error:
                remedy = (
                    "allow the command with ACL SETUSER; docs/operate/security.md lists each user's commands"
                )
                findings.append(Finding("redis", "warning", f"a check is not allowed: {error}", remedy))
            except (RedisError, TypeError, ValueError) as error:
                remedy = "check that no proxy or configuration renames or forbids INFO, TIME or LLEN"
                text = f"a check failed: {error or type(error).__name__}"
                findings.append(Finding("redis", "warning", text, remedy))
        return findings


def server_findings(info: Mapping[str, Any]) -> list[Finding]:
    """Check version, role, memory and persistence in the answer to INFO."""
    return [_version(info), _role(info), *_memory(info), _persistence(info)]


def _reach(redis: Redis, url: str) -> Finding:
    parts = urlsplit(url)
    place = f"{parts.hostname}:{parts.port or 6379}"
    started = time.perf_counter()
    try:
        redis.ping()
    except AuthenticationError as error:
        remedy = "correct user and password in KRONOS_REDIS_URL: redis://USER:PASSWORD@HOST:6379/0"
        return Finding("redis", "failed", f"{place} refuses the password: {error}", remedy)
    except RedisError as error:
        remedy = (
            "start it, or set KRONOS_REDIS_URL to a running one; `kronos up` starts one on this machine. "
            "With TLS the URL begins with rediss://"
        )
        return Finding("redis", "failed", f"{place} does not answer: {error}", remedy)
    return Finding("redis", "ok", f"{place} answers in {1000 * (time.perf_counter() - started):.1f} ms")


def _transport(url: str) -> Finding:
    parts = urlsplit(url)
    if parts.scheme == TLS_SCHEME:
        if dict(parse_qsl(parts.query)).get(VERIFY) == "none":
            remedy = f"remove {VERIFY}=none, and set KRONOS_REDIS_CA_FILE"
            return Finding("tls", "warning", "TLS, but the server is not verified", remedy)
        return Finding("tls", "ok", "TLS, and the server is verified")
    if parts.hostname in LOOPBACK:
        return Finding("tls", "ok", "no TLS, and none is needed on this machine")
    missing = "TLS" if parts.password else "TLS and password"
    remedy = "unless the network is private, use rediss:// and users (docs/operate/security.md)"
    return Finding("tls", "warning", f"no {missing} on the way to {parts.hostname}", remedy)


def _clock(redis: Redis) -> list[Finding]:
    before = time.time()
    seconds, microseconds = redis.time()
    after = time.time()
    difference_s = seconds + microseconds / 1e6 - (before + after) / 2
    text = f"{abs(difference_s):.1f} s {'ahead of' if difference_s > 0 else 'behind'} this machine's"
    if abs(difference_s) > MAX_CLOCK_DIFFERENCE_S + (after - before) / 2:
        remedy = "set both clocks by NTP: waiting times and logs are wrong by this difference"
        return [Finding("clock", "warning", f"Redis's clock is {text}", remedy)]
    return [Finding("clock", "ok", f"Redis's clock is {text}")]


def _server(redis: Redis) -> list[Finding]:
    info: Any = redis.info()
    return server_findings(info)


def _version(info: Mapping[str, Any]) -> Finding:
    version = str(info.get("redis_version", "0"))
    least = ".".join(map(str, MIN_VERSION[:2]))
    numbers = tuple(int(part) for part in version.split(".") if part.isdigit())
    if numbers < MIN_VERSION:
        return Finding("redis version", "failed", f"Redis {version}", f"install {least} or newer")
    return Finding("redis version", "ok", f"Redis {version}")


def _role(info: Mapping[str, Any]) -> Finding:
    if info.get("role") == "slave":
        remedy = "set KRONOS_REDIS_URL to its primary"
        return Finding("redis role", "failed", "a replica, which accepts no writes", remedy)
    return Finding("redis role", "ok", "accepts writes")


def _memory(info: Mapping[str, Any]) -> list[Finding]:
    limit, used = int(info.get("maxmemory", 0)), int(info.get("used_memory", 0))
    policy = str(info.get("maxmemory_policy", "noeviction"))
    shown = f"maxmemory-policy {policy}" + ("" if limit else ", no maxmemory")
    if policy == "noeviction":
        findings = [Finding("eviction", "ok", shown)]
    else:
        remedy = "set maxmemory-policy noeviction (CONFIG SET, redis.conf), or accepted jobs are dropped"
        findings = [Finding("eviction", "failed" if limit else "warning", shown, remedy)]
    if limit:
        share = used / limit
        text = f"{share:.0%} of {limit / 2**20:,.0f} MiB in use"
        remedy = "give it more memory, or lower KRONOS_MAX_QUEUE_JOBS or KRONOS_RESULT_TTL_S"
        is_tight = share > MAX_MEMORY_SHARE
        findings.append(Finding("memory", "warning" if is_tight else "ok", text, remedy if is_tight else ""))
    return findings


def _persistence(info: Mapping[str, Any]) -> Finding:
    states = {"append-only file": "aof_last_write_status", "snapshot": "rdb_last_bgsave_status"}
    for name, field in states.items():
        if info.get(field, "ok") != "ok":
            remedy = "read Redis's log; usually its disk is full"
            return Finding("persistence", "failed", f"the last {name} could not be written", remedy)
    if not int(info.get("aof_enabled", 0)):
        remedy = "set appendonly yes (CONFIG SET, redis.conf), or a restart of Redis loses queued jobs"
        return Finding("persistence", "warning", "no append-only file", remedy)
    return Finding("persistence", "ok", "append-only file")


def _dead_messages(redis: Redis) -> list[Finding]:
    num_messages = int(redis.llen(DEAD_KEY))
    if num_messages:
        remedy = "kronos queues --dead shows them; kronos queues --purge-dead deletes them"
        return [Finding("dead messages", "warning", f"{num_messages}", remedy)]
    return [Finding("dead messages", "ok", "none")]
