"""How a worker connects, and replies to control commands."""

import threading
from functools import partial

import pytest
from kombu import Exchange, Queue
from kombu.exceptions import OperationalError

from kronos_cli.stack.local_redis import LocalRedis
from kronos_client.redis.connection import REFUSED, connect
from tests.waiting import WAIT_S
from worker.broker.connecting import Connection
from worker.broker.transport import TRANSPORT, Transport
from worker.config import make_worker_app


def test_a_reply_is_given_up_when_redis_is_gone(settings, caplog):
    """Celery's event loop sends it: a worker that tried for ever would not end when it is asked to."""
    reply = ({"node": "pong"}, "replies", "asker", "ticket")
    with LocalRedis() as server, make_worker_app(settings.with_redis_url(server.url)) as app:
        send = partial(app.control.mailbox._publish_reply, *reply, channel=object())
        with app.connection_for_write() as connection:
            Queue("asker", Exchange("replies"), routing_key="asker")(connection).declare()
        send()
        assert caplog.records == []
        server.stop()
        sending = threading.Thread(target=send, daemon=True)
        sending.start()
        sending.join(WAIT_S / 4)
        assert not sending.is_alive()
    assert "a control command stays without a reply: Error 111 connecting" in caplog.text


def test_a_password_that_was_changed_is_named_with_what_to_do(settings):
    errors: list[str] = []
    with LocalRedis() as server, make_worker_app(settings.with_redis_url(server.url)) as app:
        with connect(server.url) as redis:
            redis.config_set("requirepass", "another")
        with app.connection_for_read() as connection, pytest.raises(OperationalError):
            connection.ensure_connection(lambda error, _: errors.append(str(error)), max_retries=1)
    assert set(errors) == {REFUSED}


def test_another_sentinel_is_asked_by_the_same_transport():
    connection = Connection("sentinel://127.0.0.1:1/0;sentinel://127.0.0.1:2/0", transport=TRANSPORT)
    connection.maybe_switch_next()
    assert (connection.transport_cls, connection.port) == (TRANSPORT, 2)
    assert isinstance(connection.transport, Transport)
