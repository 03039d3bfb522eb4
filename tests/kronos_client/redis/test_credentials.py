"""Passwords: from the URL, or from its file as it is now."""

import pytest

from kronos_client.redis.connection import connect
from kronos_client.redis.credentials import URL_FILE, UrlCredentials, split_credentials

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


def test_a_url_without_them_has_no_provider():
    assert split_credentials("redis://a:6379/0") == ("redis://a:6379/0", {})


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
