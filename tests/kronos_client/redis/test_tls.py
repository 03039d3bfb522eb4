"""What a Redis URL comes to say about TLS; the integration tests hold it against a server."""

import ssl
import subprocess
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest
from kombu.utils.url import parse_url
from redis.connection import parse_url as redis_parse_url

from kronos_client.celery_app import make_app
from kronos_client.redis.url import TlsError, tls_options, with_tls
from kronos_client.settings import ClientSettings, SettingsError

NOTHING = dict.fromkeys(("ssl_ca_certs", "ssl_certfile", "ssl_keyfile"))


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate and its key in one file, which serves as each of the three; its name needs escaping."""
    folder = tmp_path_factory.mktemp("own certificates, + & more")
    names = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=x")
    command = ["openssl", "req", "-x509", *names, "-keyout", "key", "-out", "pem", "-days", "2"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=60)
    pem = folder / "all.pem"
    pem.write_text((folder / "pem").read_text() + (folder / "key").read_text())
    return pem


def query(url: str) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(url).query))


def test_without_tls_nothing_changes():
    url = "redis://:s3cret@h:6379/0"
    assert with_tls(url, NOTHING) == url
    assert tls_options(url) is None


def test_servers_are_verified_unless_the_url_says_otherwise():
    assert query(with_tls("rediss://h/0", NOTHING)) == {"ssl_cert_reqs": "required"}
    assert query(with_tls("rediss://h/0?ssl_cert_reqs=none", NOTHING)) == {"ssl_cert_reqs": "none"}
    assert tls_options(with_tls("rediss://h/0", NOTHING)) == {"ssl_cert_reqs": ssl.CERT_REQUIRED}


def test_every_reader_of_the_url_reads_the_same(pem):
    settings = ClientSettings.load(
        redis_url="rediss://user:s3cret@h:1/2",
        redis_ca_file=pem,
        redis_certificate_file=pem,
        redis_key_file=pem,
    )
    url = settings.redis_url.get_secret_value()
    wanted = dict.fromkeys(NOTHING, str(pem)) | {"ssl_cert_reqs": ssl.CERT_REQUIRED}
    assert tls_options(url) == wanted
    of_redis = redis_parse_url(url)
    assert (of_redis["username"], of_redis["password"], of_redis["db"]) == ("user", "s3cret", 2)
    assert {name: of_redis[name] for name in wanted} == wanted | {"ssl_cert_reqs": "required"}
    assert parse_url(url)["ssl"] == wanted
    app = make_app(settings)
    assert app.conf.broker_use_ssl == wanted
    assert {name: app.backend.connparams[name] for name in wanted} == wanted
    with app.connection() as connection:
        assert connection.ssl == wanted


def test_what_is_written_may_be_read_again(pem):
    settings = ClientSettings.load(redis_url="rediss://h/0", redis_ca_file=pem)
    again = settings.with_redis_url(settings.redis_url.get_secret_value())
    assert again == settings


@pytest.mark.parametrize(
    ("url", "files", "reason"),
    [
        ("redis://h/0", {"ssl_ca_certs": "pem"}, "write rediss://"),
        ("redis://h/0?ssl_cert_reqs=required", {}, "write rediss://"),
        ("rediss://h/0?ssl_cert_reqs=optional", {}, "required or none"),
        ("rediss://h/0?ssl_cert_reqs=", {}, "required or none"),
        (
            "rediss://h/0?ssl_check_hostname=false",
            {},
            "takes no ssl_check_hostname after",
        ),
        ("rediss://h/0?socket_timeout=3", {}, "remove or correct it"),
        ("redis://h/0?socket_timeout=3", {}, "remove or correct it"),
        ("rediss://h/0?ssl_ca_certs=/other.pem", {"ssl_ca_certs": "pem"}, "different files"),
        ("rediss://h/0", {"ssl_ca_certs": "/nowhere.pem"}, "No such file"),
        ("rediss://h/0", {"ssl_ca_certs": __file__}, "NO_CERTIFICATE"),
        ("rediss://h/0", {"ssl_keyfile": "pem"}, "without its certificate"),
        ("rediss://h/0", {"ssl_certfile": __file__}, "or its key cannot be used"),
        ("rediss://h/0", {"ssl_ca_certs": "/100%25.pem"}, "%"),
    ],
)
def test_what_cannot_be_used_is_said_in_one_line(url, files, reason, pem):
    given = {name: pem if path == "pem" else Path(path) for name, path in files.items()}
    with pytest.raises(TlsError, match=reason) as refused:
        with_tls(url, NOTHING | given)
    assert "\n" not in str(refused.value)


def test_an_error_names_the_variables():
    with pytest.raises(SettingsError, match=r"^KRONOS_REDIS_URL .*KRONOS_REDIS_CA_FILE\) cannot be used"):
        ClientSettings.load(redis_url="rediss://h/0", redis_ca_file=Path("/nowhere.pem"))
