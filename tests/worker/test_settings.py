"""Every setting comes from its own variable only."""

import pytest
from pydantic import SecretStr

from kronos_client.contract.job_limits import Limits
from kronos_client.settings import DEFAULT_REDIS_URL, SettingsError
from kronos_model.errors import CheckpointMissing, DeviceError
from tests.all_settings import AllSettings
from worker.settings import explain


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch):
    for name in AllSettings.model_fields:
        monkeypatch.delenv(f"KRONOS_{name.upper()}", raising=False)
        monkeypatch.delenv(f"KRONOS_{name.upper()}_FILE", raising=False)


@pytest.mark.parametrize(
    ("name", "written", "expected"),
    [
        ("redis_url", "redis://:s3cret@redis:6379/1", SecretStr("redis://:s3cret@redis:6379/1")),
        ("max_jobs", "3", 3),
    ],
)
def test_a_setting_is_read_from_the_file_that_its_variable_names(
    name, written, expected, monkeypatch, tmp_path
):
    path = tmp_path / "secret"
    path.write_text(f"{written}\n")  # as an editor leaves it
    monkeypatch.setenv(f"KRONOS_{name.upper()}_FILE", str(path))
    settings = AllSettings.load()
    assert getattr(settings, name) == expected
    assert settings.model_fields_set == {name}


def test_a_setting_and_its_file_are_not_both_set(monkeypatch, tmp_path):
    path = tmp_path / "secret"
    path.write_text("hunter2")
    monkeypatch.setenv("KRONOS_FLOWER_PASSWORD_FILE", str(path))
    monkeypatch.setenv("KRONOS_FLOWER_PASSWORD", "")  # as compose writes what is not set
    assert AllSettings.load().flower_password.get_secret_value() == "hunter2"
    monkeypatch.setenv("KRONOS_FLOWER_PASSWORD", "hunter3")
    with pytest.raises(SettingsError, match=r"^KRONOS_FLOWER_PASSWORD and .*_FILE are both set") as refused:
        AllSettings.load()
    assert "hunter" not in str(refused.value)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "No such file"),
        ("folder", "Is a directory"),
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        (b"\xff\xfe s3cret", "not text in UTF-8"),
        (b"s3cret" * 20_000, "holds more than"),
    ],
    ids=["missing", "folder", "empty", "blank", "binary", "endless"],
)
def test_a_file_that_cannot_be_used_is_an_error_that_names_its_variable(
    content, reason, monkeypatch, tmp_path
):
    path = tmp_path / "secret"
    if content == "folder":
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    monkeypatch.setenv("KRONOS_REDIS_URL_FILE", str(path))
    with pytest.raises(SettingsError, match=rf"^KRONOS_REDIS_URL_FILE cannot be used: .*{reason}") as refused:
        AllSettings.load()
    assert "s3cret" not in str(refused.value)


def test_what_a_file_holds_is_checked_like_a_variable_and_not_repeated(monkeypatch, tmp_path):
    path = tmp_path / "secret"
    path.write_text("http://:s3cret@redis")
    monkeypatch.setenv("KRONOS_REDIS_URL_FILE", str(path))
    with pytest.raises(SettingsError, match=r"^KRONOS_REDIS_URL cannot be used: write it like") as refused:
        AllSettings.load()
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "redis://:s3cret@[::1/0",
        "redis://:s3cret@h:99999999/0",
        "rediss://:s3cret@h/0?ssl_cert_reqs=s3cret",
        "rediss://:s3cret@h/0?ssl_check_hostname=false",
        "rediss://:s3cret@h/0?ssl_ca_certs=/nowhere.pem",
        "redis://:s3cret@h/0?ssl_ca_certs=/nowhere.pem",
        "redis://:s3cret@h/0;redis://:s3cret@other/0",
        "redis://:s3cret@h/0\nredis://x",
        "redis://:s3cret@h/0?health_check_interval=s3cret",
    ],
)
def test_no_error_repeats_a_password(url):
    with pytest.raises(SettingsError, match=r"^KRONOS_REDIS_URL cannot be used: ") as refused:
        AllSettings.load(redis_url=url)
    assert "s3cret" not in str(refused.value)


def test_without_variables_the_defaults_stand():
    assert AllSettings.load() == AllSettings.model_construct()
    assert AllSettings.load().redis_url.get_secret_value() == DEFAULT_REDIS_URL


def test_an_empty_variable_is_one_that_is_not_set(monkeypatch):
    # How compose files and shells spell it.
    monkeypatch.setenv("KRONOS_MODEL", "")
    monkeypatch.setenv("KRONOS_MAX_CONTEXT", "")
    assert AllSettings.load().model is None
    assert AllSettings.load().max_context is None


def test_overrides_come_before_the_environment(monkeypatch):
    monkeypatch.setenv("KRONOS_MAX_JOBS", "3")
    assert AllSettings.load(max_jobs=5).max_jobs == 5


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_jobs", "0"),
        ("max_jobs", "many"),
        ("max_context", "-1"),
        ("max_message_bytes", "10"),
        ("gpu_grace_s", "-0.1"),
        ("result_ttl_s", "1.5"),
        ("models", "a=b=c"),
        ("dtype", "float16"),
    ],
)
def test_a_bad_value_is_an_error_that_names_its_variable(name, value, monkeypatch):
    monkeypatch.setenv(f"KRONOS_{name.upper()}", value)
    with pytest.raises(SettingsError, match=rf"^KRONOS_{name.upper()} cannot be used: .+"):
        AllSettings.load()


def test_secrets_are_not_printed(monkeypatch):
    monkeypatch.setenv("KRONOS_REDIS_URL", "redis://:s3cret@redis:6379/1")
    monkeypatch.setenv("KRONOS_FLOWER_PASSWORD", "hunter2")
    settings = AllSettings.load()
    shown = f"{settings!r} {settings} {settings.model_dump()} {settings.model_dump_json()}"
    assert "s3cret" not in shown
    assert "hunter2" not in shown
    assert "s3cret" not in repr(settings.with_redis_url("redis://:s3cret@elsewhere/0"))


def test_limits_carry_every_setting_of_theirs():
    names = Limits.model_fields.keys() - {"max_pred_len"}
    ours = {name: 9_000 + place for place, name in enumerate(sorted(names))}
    limits = AllSettings.load(**ours).limits(max_pred_len=64)
    assert limits.model_dump() == ours | {"max_pred_len": 64}


def test_a_start_error_is_one_line_with_the_remedy():
    line = explain(CheckpointMissing("the folder /m is not there."))
    assert line.startswith("CHECKPOINT_MISSING: the folder /m is not there.")
    assert "KRONOS_MODEL" in line
    assert "\n" not in line
    assert "KRONOS_MODEL" not in explain(DeviceError("no such device"))


@pytest.mark.parametrize(
    ("given", "model", "revision"),
    [
        ({"model": "org/kronos@v1.2"}, "org/kronos", "v1.2"),
        ({"model": "org/kronos"}, "org/kronos", None),
        ({"model": "mine@3"}, "mine@3", None),  # a registered version
        ({"model": "/models/a@b"}, "/models/a@b", None),
        ({"model": "org/kronos@a", "model_revision": "b"}, "org/kronos@a", "b"),
    ],
)
def test_a_hub_id_may_have_its_revision(given, model, revision):
    settings = AllSettings.load(**given)
    assert (settings.model, settings.model_revision, settings.tokenizer) == (model, revision, None)
