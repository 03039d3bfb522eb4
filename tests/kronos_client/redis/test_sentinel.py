"""URLs of sentinels: what they say, and that no password of theirs is shown."""

import json
import ssl

import pytest

from kronos_client.celery_app import celery_config, make_app
from kronos_client.redis.connection import connect, pool_options
from kronos_client.redis.url import SentinelUrl, TlsError, place_of, with_tls
from kronos_client.settings import ClientSettings, SettingsError

URL = "sentinel://app:s3cret%2Fword@a:1001,b,[::1]:1003/2?master=main&sentinel_user=watch&sentinel_password=pa%23ss"
NO_FILES = dict.fromkeys(("ssl_ca_certs", "ssl_certfile", "ssl_keyfile"))


def test_each_part_of_the_url_is_read():
    url = SentinelUrl.from_url(URL)
    assert url is not None
    assert url.addresses == (("a", 1001), ("b", 26379), ("::1", 1003))
    assert (url.service, url.database) == ("main", 2)
    assert url.sentinel_credentials.get_credentials() == ("watch", "pa#ss")
    options = pool_options(URL, 1)
    assert options["credential_provider"].get_credentials() == ("app", "s3cret/word")
    assert options["url"] == "redis:///2"


def test_celery_gets_its_own_form():
    config = celery_config(ClientSettings(redis_url=URL))
    at = "sentinel://app:s3cret%2Fword@"
    assert config["broker_url"] == f"{at}a:1001/2;{at}b:26379/2;{at}[::1]:1003/2"
    assert config["broker_transport_options"]["master_name"] == "main"
    app = make_app(ClientSettings(redis_url=URL))
    with app.connection_for_write() as connection:
        assert (connection.hostname, connection.port) == ("a", 1001)
        assert connection.credential_provider.get_credentials() == ("app", "s3cret/word")


def test_another_kind_of_url_has_no_sentinels():
    assert SentinelUrl.from_url("redis://h:1/0?master=main") is None


@pytest.mark.parametrize(
    "url",
    [
        "sentinel://a:1/0",  # without the primary's name
        "sentinel:///0?master=m",
        "sentinel://a:1,/0?master=m",
        "sentinel://a:port/0?master=m",
        "sentinel://a/x?master=m",
        "sentinel://a/0?master=m&tls=maybe",
        "sentinel://a/0?master=m&other=1",
        "sentinel://a/0?master=m&ssl_ca_certs=/x",  # without tls=true
    ],
)
def test_a_url_that_cannot_be_used_is_refused_without_being_repeated(url: str):
    with pytest.raises(SettingsError, match="KRONOS_REDIS_URL cannot be used") as caught:
        ClientSettings.load(redis_url=url)
    assert url not in str(caught.value)


def test_with_tls_the_servers_are_verified():
    url = with_tls("sentinel://a/0?master=m&tls=true", NO_FILES)
    options = pool_options(url, 1)
    assert options["ssl_cert_reqs"] == ssl.CERT_REQUIRED
    assert connect(url).connection_pool.connection_class.__name__ == "PrimarySSLConnection"
    with pytest.raises(TlsError, match="tls=true"):
        with_tls("sentinel://a/0?master=m&ssl_cert_reqs=none", NO_FILES)


def test_no_password_is_shown():
    config = celery_config(ClientSettings(redis_url=URL))
    options = json.dumps(config["broker_transport_options"], default=lambda value: value.__json__())
    shown = [
        place_of(URL),
        repr(SentinelUrl.from_url(URL)),
        options,
        repr(connect(URL)),
        config["result_backend"],
    ]
    assert not any(secret in text for text in shown for secret in ("s3cret", "pa#ss", "pa%23ss"))
    assert place_of(URL) == "the primary of main (sentinels a:1001, b:26379, ::1:1003)"
