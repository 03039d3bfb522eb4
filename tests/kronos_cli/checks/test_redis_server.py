"""The checks of a Redis server."""

import socket
import threading
from typing import Any
from urllib.parse import urlsplit

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from kronos_cli.checks import Finding
from kronos_cli.checks import redis_server as checks_of_redis
from kronos_cli.checks.redis_server import redis_findings, server_findings
from kronos_cli.settings import CliSettings
from kronos_cli.stack.local_redis import LocalRedis
from kronos_client.contract.names import DEAD_KEY
from kronos_client.redis.connection import connect

WELL: dict[str, Any] = {
    "redis_version": "7.4.1",
    "role": "master",
    "used_memory": 10,
    "maxmemory": 100,
    "maxmemory_policy": "noeviction",
    "aof_enabled": 1,
}


def by_check(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.check: finding for finding in findings}


def of(url: str) -> dict[str, Finding]:
    return by_check(redis_findings(CliSettings(redis_url=url)))


def test_a_redis_started_for_a_demo_lacks_only_persistence(redis_server: LocalRedis) -> None:
    found = of(redis_server.url)
    assert {check for check, finding in found.items() if finding.level != "ok"} == {"persistence"}
    assert {
        "redis",
        "tls",
        "clock",
        "redis version",
        "redis role",
        "eviction",
        "dead messages",
    } < found.keys()


def test_a_well_configured_server_has_no_warning() -> None:
    assert {finding.level for finding in server_findings(WELL)} == {"ok"}
    assert not any(finding.remedy for finding in server_findings(WELL))


@pytest.mark.parametrize(
    ("changes", "check", "level"),
    [
        ({"redis_version": "6.0.16"}, "redis version", "failed"),
        ({"redis_version": "6.2.0"}, "redis version", "ok"),
        ({"redis_version": "10.0.0"}, "redis version", "ok"),
        ({"role": "slave"}, "redis role", "failed"),
        ({"maxmemory_policy": "allkeys-lru"}, "eviction", "failed"),
        ({"maxmemory_policy": "allkeys-lru", "maxmemory": 0}, "eviction", "warning"),
        ({"used_memory": 81}, "memory", "warning"),
        ({"used_memory": 80}, "memory", "ok"),
        ({"aof_enabled": 0}, "persistence", "warning"),
        ({"aof_last_write_status": "err"}, "persistence", "failed"),
        ({"rdb_last_bgsave_status": "err", "aof_enabled": 0}, "persistence", "failed"),
    ],
)
def test_each_value_of_info_has_its_level(changes: dict[str, Any], check: str, level: str) -> None:
    found = by_check(server_findings(WELL | changes))
    assert found[check].level == level
    assert bool(found[check].remedy) is (level != "ok")


def test_dead_messages_are_a_warning(redis_server: LocalRedis, redis: Redis) -> None:
    redis.lpush(DEAD_KEY, "{}")
    assert of(redis_server.url)["dead messages"].level == "warning"


def test_a_wrong_password_and_a_missing_server_have_different_remedies(redis_server: LocalRedis) -> None:
    port = urlsplit(redis_server.url).port
    for url in (f"redis://:wrong@127.0.0.1:{port}/0", f"redis://127.0.0.1:{port}/0"):
        (finding,) = of(url).values()
        assert (finding.level, "password" in finding.remedy) == ("failed", True)
        assert "wrong" not in finding.message.replace("wrong number", "")
    (finding,) = of("redis://127.0.0.1:1/0").values()
    assert (finding.level, "kronos up" in finding.remedy) == ("failed", True)


def test_a_user_without_the_right_to_run_a_command_is_a_warning(
    redis_server: LocalRedis, redis: Redis
) -> None:
    redis.acl_setuser("plain", enabled=True, passwords=["+secret"], keys=["*"], commands=["+ping", "+time"])
    port = urlsplit(redis_server.url).port
    found = [*redis_findings(CliSettings(redis_url=f"redis://plain:secret@127.0.0.1:{port}/0"))]
    not_allowed = [finding.message for finding in found if finding.level == "warning"]
    assert ["INFO" in text.upper() for text in not_allowed] == [True, False]  # nor LLEN
    assert by_check(found)["clock"].level == "ok"


@pytest.mark.parametrize("answer", [ResponseError("unknown command 'INFO'"), ValueError("invalid literal")])
def test_a_command_without_an_answer_is_a_warning_and_the_other_checks_run(
    redis_server: LocalRedis, monkeypatch: pytest.MonkeyPatch, answer: Exception
) -> None:
    def refuse(*_: Any) -> Any:
        raise answer

    monkeypatch.setattr(checks_of_redis.Redis, "info", refuse)
    found = by_check(redis_findings(CliSettings(redis_url=redis_server.url)))
    assert found["redis"].level == "warning"
    assert str(answer) in found["redis"].message
    assert found["dead messages"].level == "ok"


@pytest.mark.parametrize(
    ("url", "level", "part"),
    [
        ("redis://:p@127.0.0.1:6379/0", "ok", "none is needed"),
        ("redis://localhost:6379/0", "ok", "none is needed"),
        ("redis://:p@db.example:6379/0", "warning", "no TLS on the way to db.example"),
        ("redis://db.example:6379/0", "warning", "no TLS and password"),
        ("rediss://:p@db.example:6379/0?ssl_cert_reqs=required", "ok", "verified"),
        ("rediss://:p@db.example:6379/0?ssl_cert_reqs=none", "warning", "not verified"),
    ],
)
def test_a_remote_server_needs_tls_and_a_password(
    url: str, level: str, part: str, redis_server: LocalRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks_of_redis, "connect", lambda *_, **__: connect(redis_server.url))
    finding = of(url)["tls"]
    assert (finding.level, part in finding.message) == (level, True)


def test_clocks_that_differ_are_a_warning(redis_server: LocalRedis, monkeypatch: pytest.MonkeyPatch) -> None:
    assert of(redis_server.url)["clock"].level == "ok"
    now = checks_of_redis.time.time
    monkeypatch.setattr(checks_of_redis.time, "time", lambda: now() + 60)
    finding = of(redis_server.url)["clock"]
    assert finding.level == "warning"
    assert "60.0 s behind this machine's" in finding.message


def test_a_server_that_is_not_redis_fails() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            for _ in range(4):
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(100)
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        (finding,) = of(f"redis://127.0.0.1:{listener.getsockname()[1]}/0").values()
    assert finding.level == "failed"
