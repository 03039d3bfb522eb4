"""Passwords: from the URL, or from its file as it is now."""

import threading
import time

import pytest

from kronos_client.client import ForecastClient
from kronos_client.contract.errors import JobError
from kronos_client.redis.connection import connect, refuse_unusable
from kronos_client.redis.url import URL_FILE, UrlCredentials, split_credentials
from kronos_model.bars.synthetic import candles

URL = "rediss://app:s3cret%2Fword@redis.example:6390/2?ssl_cert_reqs=none"


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setenv(URL_FILE, str(tmp_path / "url"))
    return tmp_path / "url"


@pytest.mark.parametrize(
    ("url", "expected"),
    [(URL, ("app", "s3cret/word")), ("redis://:word@a", ("word",)), ("redis://app:word@a", ("app", "word"))],
)
def test_those_of_the_url(url, expected):
    bare, options = split_credentials(url)
    assert "word" not in bare
    assert options["credential_provider"].get_credentials() == expected


def test_a_url_without_them_may_get_them_from_its_file(file):
    bare, options = split_credentials("redis:///0")
    assert bare == "redis:///0"
    assert options["credential_provider"].get_credentials() == ()
    file.write_text("redis://:new@/0")
    assert options["credential_provider"].get_credentials() == ("new",)


def test_a_broker_that_is_not_redis_has_no_provider():
    assert split_credentials("memory://a:b@") == ("memory://a:b@", {})


def test_a_refused_password_is_not_tried_again(redis, redis_server):
    password = redis.config_get("requirepass")["requirepass"]
    for url in (redis_server.url.replace(password, "another"), split_credentials(redis_server.url)[0]):
        with ForecastClient(url) as client:
            begun = time.monotonic()
            (outcome,) = client.forecast_many([candles(bars=400).as_dict()], pred_len=3)
            assert time.monotonic() - begun < 5
            assert outcome.error.code == "BROKER_UNREACHABLE"
            assert "correct KRONOS_REDIS_URL or its file, such as redis://USER:" in outcome.error.message
        with connect(url) as refused, pytest.raises(JobError, match="correct KRONOS_REDIS_URL or its file"):
            refuse_unusable(refused)  # a worker ends with this line


def test_a_password_that_is_refused_later_ends_waiting(redis, redis_server):
    password = redis.config_get("requirepass")["requirepass"]
    with ForecastClient(redis_server.url) as client:
        outcomes = client.forecast_many([candles(bars=400).as_dict()], pred_len=3)
        threading.Timer(0.5, lambda: (redis.config_set("requirepass", "another"), close_all(redis))).start()
        try:
            (outcome,) = outcomes
        finally:
            redis.config_set("requirepass", password)
        assert "correct KRONOS_REDIS_URL" in outcome.error.message


def close_all(redis):
    for connection in redis.client_list():
        if connection["id"] != str(redis.client_id()):
            redis.client_kill_filter(_id=connection["id"])


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_password_that_is_set_later_needs_no_restart(redis, redis_server, file, protocol):
    password = redis.config_get("requirepass")["requirepass"]
    with connect(split_credentials(redis_server.url)[0], protocol=protocol) as client:
        redis.config_set("requirepass", "")
        try:
            assert client.ping()
        finally:
            redis.config_set("requirepass", password)
        file.write_text(redis_server.url)
        client.connection_pool.disconnect()
        assert client.ping()


def test_a_changed_file_is_read_for_the_next_connection(file):
    credentials = UrlCredentials(URL)
    assert credentials.get_credentials() == ("app", "s3cret/word")  # no file yet
    file.write_text("rediss://app:new@redis.example:6390/2\n")
    assert credentials.get_credentials() == ("app", "new")
    file.write_text("not a url of ours [")
    assert credentials.get_credentials() == ("app", "s3cret/word")


@pytest.mark.parametrize("other", ["other.example:6390/2", "redis.example:6391/2", "redis.example:6390/3"])
def test_a_file_for_another_server_is_not_used(file, other):
    file.write_text(f"rediss://app:new@{other}")
    assert UrlCredentials(URL).get_credentials() == ("app", "s3cret/word")


def test_they_are_in_no_repr():
    with connect(URL) as redis:
        shown = repr(redis) + repr(redis.connection_pool) + repr(UrlCredentials(URL))
    assert "s3cret" not in shown
