"""Redis as it belongs on a network: TLS with one's own certificates, and users who may only what they need.

The users are those of deploy/redis-users.acl, to the letter.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from kronos_cli.stack.local_redis import LocalRedis, redis_version
from kronos_client.client import ForecastClient
from kronos_client.contract.errors import JobError
from kronos_client.contract.names import job_key
from tests import fork_server
from tests.integration.conftest import PARITY_SETTINGS, ROOT, WorkerUnderTest
from tests.integration.test_other_clients import PASSWORD as FLOWER_PASSWORD
from tests.integration.test_other_clients import ask
from tests.ports import free_port
from tests.waiting import WAIT_S
from worker.settings import WorkerSettings

USERS = {name: f"{name}-s3cretword" for name in ("kronos-worker", "kronos-app", "kronos-flower")}
ADMIN_PASSWORD = "admin-s3cretword"
SECRETS = (*USERS.values(), ADMIN_PASSWORD, FLOWER_PASSWORD)


def acl_lines() -> list[str]:
    """The users in deploy/, with this test's passwords; the default user stays, for looking on."""
    block = (ROOT / "deploy" / "redis-users.acl").read_text().splitlines()
    assert block.pop(0) == "user default off"
    lines = [line.replace(">PASSWORD", f">{USERS[line.split()[1]]}") for line in block]
    assert [line.split()[1] for line in lines] == list(USERS)
    return lines


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True, timeout=WAIT_S)


@dataclass(frozen=True)
class Certificates:
    """Files: a CA, what it signed for server and client, and a CA that signed nothing here."""

    folder: Path

    def make(self) -> None:
        (self.folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
        key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        for ca in ("ca", "stranger"):
            openssl(self.folder, "req", "-x509", *key, "-days", "2", "-subj", f"/CN={ca}",
                    "-keyout", f"{ca}.key", "-out", f"{ca}.pem")  # fmt: skip
        for name in ("server", "client"):
            openssl(self.folder, "req", *key, "-subj", f"/CN={name}", "-keyout", f"{name}.key",
                    "-out", f"{name}.csr")  # fmt: skip
            openssl(self.folder, "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key",
                    "-CAcreateserial", "-days", "2", "-extfile", "names", "-out", f"{name}.pem")  # fmt: skip

    def __getitem__(self, name: str) -> str:
        return str(self.folder / name)


class SecuredRedis(LocalRedis):
    """A server on a TLS port alone, with the users of deploy/."""

    def __init__(
        self, certificates: Certificates, *, asks_for_certificates: bool = False, **given: Any
    ) -> None:
        super().__init__(**given)
        self.certificates = certificates
        self._asks = asks_for_certificates
        self._shown = certificates["client.pem"], certificates["client.key"]

    @property
    def url(self) -> str:
        files = f"ssl_ca_certs={self.certificates['ca.pem']}"
        if self._asks:
            files += "&ssl_certfile={}&ssl_keyfile={}".format(*self._shown)
        return f"rediss://:{ADMIN_PASSWORD}@{self.address}/0?{files}"

    def url_for(self, user: str) -> str:
        """As an operator writes it, the CA in a setting of its own."""
        return f"rediss://{user}:{USERS[user]}@{self.address}/0"

    def _configuration(self) -> str:
        lines = super()._configuration().splitlines()
        kept = [line for line in lines if not line.startswith(("port", "requirepass"))]
        return "\n".join(
            [
                *kept,
                "port 0",
                f"tls-port {self._port}",
                f"tls-cert-file {self.certificates['server.pem']}",
                f"tls-key-file {self.certificates['server.key']}",
                f"tls-ca-cert-file {self.certificates['ca.pem']}",
                f"tls-auth-clients {'yes' if self._asks else 'no'}",
                f"user default on >{ADMIN_PASSWORD} ~* &* +@all",
                *acl_lines(),
                "",
            ]
        )


def redis_with_tls() -> Path:
    """A redis-server with TLS; without one and openssl the test is skipped.

    The virtual environment has one without TLS, which comes first on the PATH of a shell that activated it.
    """
    paths = [Path(folder, "redis-server") for folder in os.environ["PATH"].split(os.pathsep)]
    found = [path for path in paths if os.access(path, os.X_OK)]
    if not found or shutil.which("openssl") is None:
        pytest.skip("redis-server or openssl is not installed: apt-get install redis-server openssl")
    for path in found:
        assert redis_version(path) is not None
        # It ends at once: no certificate is named.
        command = [path, "--port", "0", "--tls-port", str(free_port())]
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
        said = done.stdout + done.stderr
        if "'tls-port" not in said and "Failed finding TLS support" not in said:
            return path
    pytest.skip("redis-server on PATH was built without TLS: apt-get install redis-server")


@pytest.fixture(scope="module")
def binary() -> Path:
    return redis_with_tls()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory, binary: Path) -> Certificates:
    made = Certificates(tmp_path_factory.mktemp("certificates"))
    made.make()
    return made


@pytest.fixture(scope="module")
def secured(certificates: Certificates, binary: Path) -> Iterator[SecuredRedis]:
    with SecuredRedis(certificates, binary=binary) as redis:
        yield redis


@pytest.fixture(scope="module")
def admin(secured: SecuredRedis) -> Iterator[Redis]:
    with Redis.from_url(secured.url, decode_responses=True) as client:
        yield client


@pytest.fixture
def no_command_is_refused(admin: Redis) -> Iterator[None]:
    """Fail if Redis refused a command to one of the users, even if that user went on without it."""
    admin.acl_log_reset()
    yield
    assert {(one["username"], one["reason"], one["object"]) for one in admin.acl_log()} == set()


class AsUser:
    """What ``WorkerUnderTest`` needs of a Redis: an address for looking on. Settings name the user."""

    def __init__(self, redis: SecuredRedis) -> None:
        self.url = redis.url


def settings_of(redis: SecuredRedis, user: str, folder: Path) -> dict[str, str]:
    """By files, as containers have them."""
    secret = folder / f"{user}.url"
    secret.write_text(redis.url_for(user) + "\n")
    return {
        "KRONOS_REDIS_URL_FILE": str(secret),
        "KRONOS_REDIS_URL": "",
        "KRONOS_REDIS_CA_FILE": redis.certificates["ca.pem"],
    }


def kronos(settings: dict[str, str], *arguments: str) -> "subprocess.CompletedProcess[str]":
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("KRONOS_")}
    return fork_server.run(["kronos_cli", *arguments], inherited | settings | {"COLUMNS": "250"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("secured")


@pytest.fixture(scope="module")
def worker(secured: SecuredRedis, folder: Path) -> Iterator[WorkerUnderTest]:
    settings = settings_of(secured, "kronos-worker", folder) | {"KRONOS_VISIBILITY_TIMEOUT_S": "2"}
    command = ["celery", "-A", "worker.app", "worker", "--loglevel", "DEBUG"]
    worker = WorkerUnderTest(AsUser(secured), folder / "worker.log", command, settings)  # type: ignore[arg-type]
    try:
        yield worker.wait_until_ready()
    finally:
        worker.stop()


@pytest.fixture(scope="module")
def client(secured: SecuredRedis) -> Iterator[ForecastClient]:
    settings = WorkerSettings.load(
        redis_url=secured.url_for("kronos-app"), redis_ca_file=secured.certificates["ca.pem"]
    )
    with ForecastClient(settings=settings) as client:
        yield client


def assert_no_secret(*shown: str) -> None:
    for text in shown:
        assert not [secret for secret in SECRETS if secret in text]


@pytest.mark.usefixtures("no_command_is_refused")
def test_jobs_run_are_followed_and_cancelled(worker, client, candles):
    states = []
    result = client.forecast(
        candles[:60], pred_len=12, sample_count=4, timeout_s=WAIT_S, on_progress=states.append
    )
    assert len(result.series[0].timestamps) == 12
    assert client.workers()[0].state == "ready"
    handle = client.submit([candles[:60]] * 16, pred_len=100, sample_count=256)
    handle.cancel()
    with pytest.raises(JobError, match="CANCELLED"):
        handle.wait(WAIT_S)
    assert_no_secret(worker.log.read_text(), repr(client), repr(vars(client)), repr(handle))


@pytest.mark.usefixtures("no_command_is_refused", "worker")
def test_a_feed_is_appended_to_forecast_and_deleted(client, candles):
    bars = candles.rename(columns={"timestamps": "ds"}).assign(unique_id="a")
    with client.feed("f", pred_len=4, sample_count=2) as feed:
        for last in (60, 61, 62, 63, 64):  # so that bars join into larger blocks
            feed.append(bars[:last])
        after = "0"
        while (update := feed.next_updates(after)) and update[-1].version < 5:
            after = update[-1].id
        assert feed.forecast("a").forecast is not None
        feed.replace(bars[:70])
        feed.delete()


@pytest.mark.usefixtures("no_command_is_refused")
def test_training_jobs_run_and_register(secured, client, folder):
    models, data = folder / "models", folder / "data"
    data.mkdir()
    (data / "candles.csv").write_text("timestamps,open,high,low,close\n")
    settings = settings_of(secured, "kronos-worker", folder) | {
        "KRONOS_ROLE": "finetune",
        "KRONOS_MODEL_FOLDER": str(models),
        "KRONOS_DATA_FOLDER": str(data),
        "FAKE_LOG": str(folder / "trainer.log"),
        "FAKE_STEP_S": "0.02",
    }
    command = ["celery", "-A", "worker.app", "worker", "--include", "tests.integration.fake_training"]
    trainer = WorkerUnderTest(AsUser(secured), folder / "finetune.log", command, settings)  # type: ignore[arg-type]
    try:
        trainer.wait_until_ready()
        config = {"start": {"model": "kronos-tiny"}, "predictor": {"epochs": 2}}
        handle = client.finetune(config, name="mine", data="candles.csv")
        assert handle.wait(WAIT_S).model.id == "mine@1"
    finally:
        trainer.stop()
    assert_no_secret(trainer.log.read_text())


@pytest.mark.usefixtures("no_command_is_refused")
def test_the_command_line_shows_the_workers(worker, secured, folder):
    shown = kronos(settings_of(secured, "kronos-app", folder), "status")
    assert shown.returncode == 0, shown.stderr
    assert worker.node in shown.stdout
    assert_no_secret(shown.stdout, shown.stderr)


@pytest.mark.usefixtures("no_command_is_refused")
def test_one_job_is_explained_with_the_rights_of_an_app(worker, client, candles, secured, folder):
    handle = client.submit(candles[:60], pred_len=2, sample_count=1)
    handle.wait(WAIT_S)
    shown = kronos(settings_of(secured, "kronos-app", folder), "job", handle.id)
    assert shown.returncode == 0, shown.stderr
    assert "ended the job" in shown.stdout
    assert "Not read" not in shown.stdout
    assert_no_secret(shown.stdout, shown.stderr)


@pytest.mark.usefixtures("no_command_is_refused")
def test_a_lost_job_is_noticed_with_the_rights_of_an_app(worker, client, admin):
    admin.hset(job_key("lost"), mapping={"fingerprint": "x", "at": "none"})
    with pytest.raises(JobError, match="safe to submit again"):
        client.forecast_handle("lost").wait(WAIT_S)


@pytest.mark.usefixtures("no_command_is_refused")
def test_flower_shows_queues_and_workers_and_hides_passwords(worker, client, candles, secured, folder):
    port = free_port()
    settings = settings_of(secured, "kronos-flower", folder)
    (folder / "flower.password").write_text(FLOWER_PASSWORD)
    settings["KRONOS_FLOWER_PASSWORD_FILE"] = str(folder / "flower.password")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("KRONOS_")}
    log = folder / "flower.log"
    with log.open("w") as output:
        flower = subprocess.Popen(
            [sys.executable, "-m", "kronos_cli", "flower", "--port", str(port)],
            cwd=ROOT,
            env=inherited | settings,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        address = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + WAIT_S
        queues: dict[str, Any] = {}
        while "active_queues" not in queues.get(worker.node, {}):
            assert time.monotonic() < deadline, log.read_text()
            assert flower.poll() is None, log.read_text()
            try:
                queues = ask(f"{address}/api/workers?refresh=1")
            except OSError:  # not listening yet, or no worker has answered it
                time.sleep(0.2)
        # On a slow machine it stands in for the gpu pool by now.
        assert "cpu" in {one["name"] for one in queues[worker.node]["active_queues"]}
        assert {"name": "cpu", "messages": 0} in ask(f"{address}/api/queues/length")["active_queues"]
        handle = client.submit(candles[:60], pred_len=2)
        handle.wait(WAIT_S)
        while handle.id not in (tasks := ask(f"{address}/api/tasks")):
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        assert ask(f"{address}/api/task/result/{handle.id}")["state"] == "SUCCESS"
        commands = subprocess.run(["ps", "-eo", "args="], capture_output=True, text=True, check=True).stdout
    finally:
        flower.terminate()
        flower.wait(WAIT_S)
    assert "kronos_cli flower --port" in commands
    assert_no_secret(log.read_text(), commands, str(tasks), str(queues))


def output_until(expected: str, settings: dict[str, str], log: Path, *arguments: str) -> str:
    """What a command prints until it says so, and then until SIGTERM has ended it."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("KRONOS_")}
    with log.open("w") as output:
        process = fork_server.Process(
            ["kronos_cli", *arguments],
            inherited | {"PYTHONPATH": str(ROOT)} | settings,
            cwd=log.parent,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        deadline = time.monotonic() + WAIT_S
        while expected not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
    finally:
        process.terminate()
        process.wait(WAIT_S)
    return log.read_text()


def test_the_one_machine_stack_shows_no_password_that_it_was_given(secured, tmp_path):
    settings = settings_of(secured, "kronos-worker", tmp_path) | PARITY_SETTINGS
    (tmp_path / "password").write_text(FLOWER_PASSWORD)
    settings["KRONOS_FLOWER_PASSWORD_FILE"] = str(tmp_path / "password")
    shown = output_until(
        "Everything is ready", settings, tmp_path / "up.log", "up", "--flower-port", str(free_port())
    )
    at_first, logs = shown.split("Flower: http://127.0.0.1", maxsplit=1)
    assert "Starting:" in at_first
    assert "ready: role=forecast device=" in logs, "the addresses come again below the logs of the start"
    assert_no_secret(shown)


def test_a_worker_with_the_wrong_password_ends_and_says_so_without_it(secured, tmp_path):
    settings = settings_of(secured, "kronos-worker", tmp_path) | PARITY_SETTINGS
    url = tmp_path / "kronos-worker.url"
    url.write_text(url.read_text().replace("-s3cretword@", "-s3cretword-not@"))
    ended = kronos(settings, "worker")
    shown = ended.stdout + ended.stderr
    assert ended.returncode == 1
    assert "Redis refuses the user or password, or requires one: correct KRONOS_REDIS_URL" in shown
    assert "Traceback" not in shown
    assert_no_secret(shown)


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize(
    "command",
    [
        ("GET", "other:key"),
        ("SET", "other:key", "1"),
        ("LPUSH", "celery", "{}"),
        ("KEYS", "*"),
        ("SCAN", "0"),
        ("FLUSHALL",),
        ("CONFIG", "GET", "*"),
        ("ACL", "LIST"),
        ("CLIENT", "LIST"),
        ("PUBLISH", "other", "1"),
        ("SORT", "cpu", "BY", "nosort", "GET", "other:*"),
        ("EVAL", "return redis.call('GET', KEYS[1])", "1", "other:key"),
        ("EVAL", "return redis.call('GET', 'other:key')", "0"),
    ],
    ids=lambda command: "_".join(command[:2]).replace(" ", "_")[:20],
)
def test_no_user_reaches_keys_that_are_not_ours(secured, user, command):
    with (
        Redis.from_url(secured.url_for(user), ssl_ca_certs=secured.certificates["ca.pem"]) as redis,
        pytest.raises(ResponseError, match=r"(?i)no permissions|NOPERM|can't access|access to"),
    ):
        redis.execute_command(*command)


WRONG = {
    "another CA": ({"KRONOS_REDIS_CA_FILE": "stranger.pem"}, None, "CERTIFICATE_VERIFY_FAILED"),
    "no CA": ({"KRONOS_REDIS_CA_FILE": ""}, None, "CERTIFICATE_VERIFY_FAILED"),
    "no TLS": ({"KRONOS_REDIS_CA_FILE": ""}, ("rediss://", "redis://"), "reset by peer|closed"),
    "another password": ({}, ("-s3cretword@", "-s3cretword-not@"), "invalid username-password"),
    "a name that is not in the certificate": ({}, ("127.0.0.1", "localhost"), "CERTIFICATE_VERIFY_FAILED"),
    "a CA that is not there": ({"KRONOS_REDIS_CA_FILE": "/nowhere.pem"}, None, "KRONOS_REDIS_CA_FILE"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_configuration_error_is_one_clear_line(what, secured, tmp_path):
    changes, rewrite, expected = WRONG[what]
    settings = settings_of(secured, "kronos-app", tmp_path)
    settings |= {name: value and secured.certificates[value] for name, value in changes.items()}
    url = tmp_path / "kronos-app.url"
    if rewrite is not None:
        url.write_text(url.read_text().replace(*rewrite))
    shown = kronos(settings, "status")
    assert shown.returncode == 1
    assert shown.stdout == ""
    (line,) = shown.stderr.splitlines()
    assert re.search(expected, line), line
    assert_no_secret(line)


def test_a_client_with_the_wrong_password_gets_an_error_without_it(secured):
    settings = WorkerSettings.load(
        redis_url=secured.url_for("kronos-app").replace("-s3cretword@", "-not-s3cretword@"),
        redis_ca_file=secured.certificates["ca.pem"],
    )
    with ForecastClient(settings=settings) as client, pytest.raises(JobError) as refused:
        client.workers()
    assert refused.value.code == "BROKER_UNREACHABLE"
    assert "AuthenticationError" in str(refused.value)
    assert "s3cretword" not in str(refused.value)


def test_a_server_may_ask_for_certificates(certificates, binary, tmp_path):
    with SecuredRedis(certificates, asks_for_certificates=True, binary=binary) as redis:
        settings = settings_of(redis, "kronos-app", tmp_path)
        refused = kronos(settings, "status")
        assert re.search("certificate required|EOF occurred|reset by peer|closed", refused.stderr), (
            refused.stderr
        )
        own = {
            "KRONOS_REDIS_CERTIFICATE_FILE": certificates["client.pem"],
            "KRONOS_REDIS_KEY_FILE": certificates["client.key"],
        }
        assert "no worker is alive" in kronos(settings | own, "status").stderr
