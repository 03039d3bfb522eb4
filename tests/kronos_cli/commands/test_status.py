"""``kronos status --watch``: on a terminal, in a pipe, and during an outage of Redis."""

import json
import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from typing import IO

import pytest
from redis import Redis

from kronos_cli.stack.local_redis import LocalRedis
from kronos_cli.stack.services import own_command
from kronos_client.redis.connection import connect
from kronos_client.redis.routing import announce
from kronos_model.processes.children import own_environment
from tests.kronos_cli.test_main import status
from tests.waiting import WAIT_S


@pytest.fixture
def server() -> Iterator[LocalRedis]:
    with LocalRedis() as server:
        yield server


@pytest.fixture
def redis(server: LocalRedis) -> Iterator[Redis]:
    with connect(server.url) as client:
        yield client


def watch(server: LocalRedis, *arguments: str, output: int) -> subprocess.Popen[bytes]:
    environment = own_environment({"KRONOS_REDIS_URL": server.url, "COLUMNS": "120", "TERM": "xterm"})
    command = own_command("status", "--watch", "--interval", "0.1", *arguments)
    return subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.PIPE)


def stop(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=WAIT_S)
    return process.returncode, errors.decode()


def test_in_a_pipe_each_line_is_a_list_also_during_an_outage_of_redis(
    server: LocalRedis, redis: Redis
) -> None:
    process = watch(server, "--json", output=subprocess.PIPE)
    lines: IO[bytes] = process.stdout  # type: ignore[assignment]
    assert json.loads(lines.readline()) == []
    announce(redis, status("celery@one"))
    found = (json.loads(line) for line in lines)
    assert [worker["node"] for worker in next(filter(None, found))] == ["celery@one"]
    server.stop()
    first = next(report for report in found if "error" in report)
    assert first["error"]["code"] == next(found)["error"]["code"] == "BROKER_UNREACHABLE"
    assert process.poll() is None
    assert stop(process) == (0, "")


def read_until(terminal: int, wanted: str) -> str:
    seen = ""
    deadline = time.monotonic() + WAIT_S
    while wanted not in seen and time.monotonic() < deadline:
        if select.select([terminal], [], [], 1)[0]:
            seen += os.read(terminal, 65536).decode(errors="replace")
    assert wanted in seen, seen
    return seen


def test_on_a_terminal_it_is_redrawn_also_during_an_outage_of_redis(server: LocalRedis, redis: Redis) -> None:
    terminal, output = pty.openpty()
    process = watch(server, output=output)
    os.close(output)
    try:
        read_until(terminal, "no worker is alive")
        announce(redis, status("celery@one"))
        read_until(terminal, "celery@one")
        server.stop()
        read_until(terminal, "does not answer")
        assert stop(process) == (0, "")
    finally:
        process.kill()
        process.wait()
        os.close(terminal)
