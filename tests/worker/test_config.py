"""How our Celery apps differ from Celery's defaults, and from the app of a host."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from celery import Celery
from celery.app import app_or_default

from kronos_client.celery_app import make_app
from kronos_client.redis.url import split_credentials
from worker.broker.result_backend import CodedRedisBackend
from worker.config import make_worker_app

ROOT = Path(__file__).parents[2]


@pytest.fixture
def app(settings):
    with make_worker_app(settings) as app:
        yield app


def test_only_json_is_written_and_read(app):
    assert app.conf.task_serializer == app.conf.result_serializer == "json"
    assert app.conf.accept_content == app.conf.result_accept_content == ["json"]
    assert app.conf.event_serializer == "json"


def test_settings_reach_the_configuration(settings):
    settings = settings.model_copy(update={"result_ttl_s": 7, "visibility_timeout_s": 8})
    with make_app(settings) as app:
        assert app.conf.result_expires == 7
        url = settings.redis_url.get_secret_value()
        assert (app.conf.broker_url, app.conf.result_backend) == (url, split_credentials(url)[0])


@pytest.mark.parametrize("scheme", ["redis", "rediss"])
def test_failures_are_stored_by_our_backend_with_and_without_tls(settings, scheme):
    extra = "?ssl_cert_reqs=required" if scheme == "rediss" else ""
    with make_worker_app(settings.with_redis_url(f"{scheme}://127.0.0.1:1/0{extra}")) as app:
        assert type(app.backend) is CodedRedisBackend


def test_a_host_keeps_its_own_current_app(settings):
    host = Celery("host", set_as_current=False, broker="memory://", backend="redis://127.0.0.1:1/0")
    with host:
        before = app_or_default()
        with make_app(settings) as ours:
            assert app_or_default() is before
            assert ours is not before


@pytest.mark.parametrize(("module", "is_ours"), [("kronos_client.client", False), ("worker.app", True)])
def test_importing_connects_to_nothing_and_only_the_workers_app_becomes_current(module, is_ours):
    script = (
        "import socket\n"
        "def refuse(*_): raise SystemExit('it connected')\n"
        "socket.socket.connect = refuse\n"
        "from celery import Celery, current_app\n"
        "host = Celery('host')\n"
        f"import {module}\n"
        "print(current_app.main)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert done.stdout.strip() == ("kronos" if is_ours else "host")


@pytest.mark.skipif(
    sys.platform != "linux", reason="GNU's OpenMP is in PyTorch's wheels for Linux: run it there"
)
@pytest.mark.parametrize(("given", "num_spins"), [({}, 10_000), ({"OMP_WAIT_POLICY": "PASSIVE"}, 0)])
def test_openmp_threads_of_a_worker_spin_briefly(given, num_spins):
    """As OpenMP itself says: it reads its environment once, when torch is imported."""
    variables = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}
    environment = {name: value for name, value in os.environ.items() if name not in variables}
    environment |= {"OMP_DISPLAY_ENV": "VERBOSE"} | given
    command = [sys.executable, "-c", "import worker.app, torch"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert re.findall(r"GOMP_SPINCOUNT = '(\d+)'", done.stderr) == [str(num_spins)]
