"""The connections of our own: strings, bounded waits, and a Redis that comes back."""

import socket
import threading

import pytest
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError, TimeoutError

from kronos_cli.stack.local_redis import LocalRedis
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.redis import connection
from kronos_client.redis.connection import ask_once, connect, reachable, unreachable
from tests.ports import free_port
from tests.waiting import WAIT_S


def test_a_connection_that_was_cut_is_made_again(redis, redis_server):
    with connect(redis_server.url) as victim:
        victim.ping()
        redis.client_kill_filter(_type="normal", skipme=True)
        assert victim.ping()


def test_a_redis_that_restarts_is_found_again(tmp_path):
    port = free_port()
    with LocalRedis(data=tmp_path, port=port) as server:
        client = connect(server.url)
        client.set("kept", "yes")
    with pytest.raises(ConnectionError):
        client.ping()
    with LocalRedis(data=tmp_path, port=port):
        assert client.get("kept") == "yes"
    client.close()


def test_an_error_of_a_key_of_another_type_names_the_key(redis, redis_server):
    redis.mset({"wrong": "a string", "kronos:right": 1})
    redis.hset("hash", "field", 1)
    with connect(redis_server.url) as client:
        script = client.register_script("return redis.call('HGET', KEYS[2], KEYS[1])")
        calls = [
            lambda: client.hgetall("wrong"),
            lambda: client.xread({"wrong": 0}),
            lambda: script(keys=["hash", "wrong"]),
            lambda: client.pipeline(transaction=False).get("kronos:right").hgetall("wrong").execute(),
        ]
        for call in calls:
            with pytest.raises(JobError) as refused, reachable():
                call()
            assert refused.value.code == ErrorCode.KEY_UNREADABLE
            assert "wrong" in refused.value.message
            assert "delete that key" in refused.value.message
        answers = ask_once(client, [("GET", "kronos:right"), ("HGETALL", "wrong")])
        assert answers[0] == "1"
        assert unreachable(answers[1]).message.count(" of wrong") == 1


def test_more_threads_than_connections_wait_for_each_other(redis_server):
    answers: list[bool] = []
    with connect(redis_server.url) as client:
        pool = client.connection_pool
        in_use = [pool.get_connection() for _ in range(connection.MAX_CONNECTIONS)]
        thread = threading.Thread(target=lambda: answers.append(client.ping()))
        thread.start()
        thread.join(0.2)
        assert answers == []
        pool.release(in_use.pop())
        thread.join(WAIT_S)
        assert answers == [True]
        for one in in_use:
            pool.release(one)


def test_a_server_that_never_answers_is_given_up(monkeypatch):
    monkeypatch.setitem(connection.OPTIONS, "socket_timeout", 0.02)
    monkeypatch.setattr(connection, "ConstantBackoff", lambda _: NoBackoff())
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(TimeoutError):
            connect(f"redis://127.0.0.1:{port}/0").ping()


def idle_connections(client):
    """Three in the client's pool."""
    pool = client.connection_pool
    connections = [pool.get_connection() for _ in range(3)]
    for one in connections:
        pool.release(one)
    return connections


def test_a_connection_that_falls_silent_takes_the_idle_ones_along(redis_server, monkeypatch):
    with connect(redis_server.url) as client:
        connections = idle_connections(client)
        sockets = [connection._sock for connection in connections]
        real = type(connections[-1]).read_response
        silent = [TimeoutError("silent")]

        def read_response(connection, *args, **kwargs):
            if silent and connection is connections[-1]:
                raise silent.pop()
            return real(connection, *args, **kwargs)

        monkeypatch.setattr(type(connections[-1]), "read_response", read_response)
        assert client.ping()
        assert not silent
        assert all(connection._sock not in sockets for connection in connections)


def test_no_connection_is_closed_that_a_thread_may_take(redis_server, monkeypatch):
    with connect(redis_server.url) as client:
        pool, connections = client.connection_pool, idle_connections(client)
        real = type(connections[0]).disconnect
        closed = []

        def disconnect(connection, *args, **kwargs):
            closed.append((connection, connection in pool.pool.queue))
            return real(connection, *args, **kwargs)

        in_use = pool.get_connection()
        with monkeypatch.context() as patch:
            patch.setattr(type(in_use), "disconnect", disconnect)
            client._close_connection(in_use)
        pool.release(in_use)
        assert {id(connection) for connection, _ in closed} == {id(one) for one in connections}
        assert not any(is_free for _, is_free in closed)
        assert pool.pool.qsize() == pool.max_connections
        assert client.ping()
