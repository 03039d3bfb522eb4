"""How our Celery apps differ from Celery's defaults, and from the app of a host."""

import subprocess
import sys
from pathlib import Path

import pytest
from celery import Celery
from celery.app import app_or_default
from kombu.transport.redis import Channel

from kronos_client.celery_app import make_app
from kronos_client.contract.names import CELERY_PRIORITIES
from kronos_client.redis.queues import DELIVERY_KEYS, PRIORITY_STEPS
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


def test_the_keys_of_unacknowledged_jobs_are_not_those_of_other_apps_and_roles():
    ours = {key for keys in DELIVERY_KEYS.values() for key in keys}
    assert len(ours) == 6
    assert not ours & {Channel.unacked_key, Channel.unacked_index_key, Channel.unacked_mutex_key}


def test_every_priority_has_a_list_of_its_own(app):
    with app.connection_for_read() as connection:
        assert connection.default_channel.priority_steps == list(PRIORITY_STEPS)
        assert connection.default_channel.queue_order_strategy == "priority"
    assert set(CELERY_PRIORITIES.values()) <= set(PRIORITY_STEPS)
    assert app.conf.task_default_priority == CELERY_PRIORITIES["normal"]


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
