"""Which messages a worker accepts, and the reason and job id of each refusal."""

import base64
import json
from typing import Any

import pytest
from celery import Celery
from hypothesis import given
from hypothesis import strategies as st

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.job_limits import Limits
from kronos_client.contract.jobs import read_job
from kronos_client.contract.names import FORECAST_TASK
from worker.broker.consuming import TASKS
from worker.broker.messages import (
    MAX_CONTAINERS,
    MAX_DEPTH,
    MAX_REPR_CHARS,
    BadMessage,
    read_message,
    too_large,
)

BODY = [[], {"job": {"pred_len": 3}}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]

SERIES = {"id": "a", "timestamps": ["2024-01-01"], "open": [1], "high": [1], "low": [1], "close": [1]}


def message(body: Any = BODY, headers: Any = (), properties: Any = (), **fields: Any) -> dict[str, Any]:
    """A message as Celery 5.7 puts it on a list."""
    return {
        "body": base64.b64encode(json.dumps(body).encode()).decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {"lang": "py", "task": FORECAST_TASK, "id": "job-1", "retries": 0} | dict(headers),
        "properties": {"correlation_id": "job-1", "body_encoding": "base64"} | dict(properties),
    } | fields


def read(value: Any):
    return read_message(value if isinstance(value, bytes) else json.dumps(value).encode(), TASKS)


def refused(value: Any) -> BadMessage:
    with pytest.raises(BadMessage) as caught:
        read(value)
    return caught.value


def test_a_message_from_celery_is_accepted(redis_server, redis):
    with Celery("sender", broker=redis_server.url, set_as_current=False) as app:
        app.send_task(FORECAST_TASK, kwargs={"job": {"a": 1}}, queue="cpu", task_id="x")
    sent = redis.rpop("cpu")
    read_back = read(sent.encode())
    assert read_back.arguments[1] == {"job": {"a": 1}}
    assert read_back.payload["headers"]["id"] == "x"
    assert read_back.payload["body"] is read_back.arguments
    assert read_back.eta is None


def test_protocol_1_becomes_protocol_2():
    body = {"id": "old", "task": FORECAST_TASK, "args": [], "kwargs": {"job": {}}, "retries": 0, "eta": None}
    read_back = read(message(body, headers={}) | {"headers": {}})
    assert read_back.payload["headers"]["id"] == read_back.payload["properties"]["correlation_id"] == "old"
    assert read_back.payload["body"] == read_back.arguments == [[], {"job": {}}, {}]


def test_headers_that_are_not_checked_are_left_out():
    read_back = read(
        message(
            headers={
                "expires": "2026-01-01T00:00:00",
                "shadow": "\x1b[31m",
                "timelimit": [1, 1],
                "ignore_result": True,
                "x": 1,
            }
        )
    )
    headers = read_back.payload["headers"]
    assert not {"shadow", "ignore_result", "x"} & headers.keys()
    assert headers["expires"] is None
    assert headers["timelimit"] == [None, None]


@pytest.mark.parametrize(
    ("sent", "time_limit_s"),
    [(None, None), ([None, None], None), ([10, None], 10), ([10, 5.5], 5.5), ([0, 7], 7)],
)
def test_celerys_time_limits_become_ours(sent, time_limit_s):
    assert read(message(headers={"timelimit": sent})).payload["headers"]["time_limit_s"] == time_limit_s


def test_flower_shows_our_short_form_of_the_job():
    job = {"series": [{"id": "\x1b[2J" * 9, "open": [1.0] * 500}], "pred_len": 3}
    headers = {"argsrepr": "\x1b[2J" + "x" * 10_000, "kwargsrepr": 5, "origin": "\n" + "x" * 10_000}
    shown = read(message([[], {"job": job}, {}], headers=headers)).payload["headers"]
    assert shown["argsrepr"] == "()"
    assert shown["kwargsrepr"] == "{'series': '?', 'pred_len': 3}"
    assert shown["origin"] == "?" + "x" * (MAX_REPR_CHARS - 1)


@pytest.mark.parametrize(
    ("eta", "unix_time"),
    [("2026-01-01T00:00:00+00:00", 1767225600.0), ("2026-01-01T01:00:00+01:00", 1767225600.0),
     ("2026-01-01T00:00:00", 1767225600.0)],
)  # fmt: skip
def test_an_eta_is_read_as_celery_reads_it(eta, unix_time):
    assert read(message(headers={"eta": eta})).eta == unix_time


@pytest.mark.parametrize(
    "raw",
    [b"", b"not json", b"\xff\xfe", b"5", b"[]", b"null", b'"text"', b"[" * 50_000, b"9" * 5_000, b"{}"],
)
def test_a_non_message_is_refused_without_a_job_id(raw):
    assert refused(raw).job_id is None


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (message(body=5), "not [args, kwargs, embed]"),
        (message(body=[]), "not [args, kwargs, embed]"),
        (message(body=[[], [], {}]), "a list, an object and an object"),
        (message(body=[[], {}, {"chain": 5}]), "not a Celery task signature"),
        (message(body=[[], {}, {"callbacks": [{"task": 5}]}]), "not a Celery task signature"),
        (message(body=[[], {}, {"\x1bnew": None}]), "not a Celery task signature"),
        (message(body="!!") | {"body": "%%%"}, "not base64"),
        (message() | {"body": None}, "not text"),
        (message() | {"body": base64.b64encode(b"\x80\x04").decode()}, "not JSON"),
        (message() | {"body": base64.b64encode(b"[" * 90_000).decode()}, "64 deep"),
        (message() | {"body": base64.b64encode(b"[" * (MAX_CONTAINERS + 1)).decode()}, "more than 100000"),
        (message(**{"content-type": "application/x-python-serialize"}), "content type"),
        (message(**{"content-type": "application/x-yaml"}), "content type"),
        (message(**{"content-type": "application/x-msgpack"}), "content type"),
        (message(**{"content-type": None}), "content type"),
        (message() | {"body": base64.b64encode(json.dumps(BODY).encode("utf-16")).decode()}, "not JSON"),
        (
            message() | {"body": base64.b64encode(b"\xef\xbb\xbf" + json.dumps(BODY).encode()).decode()},
            "not JSON",
        ),
        (message() | {"body": base64.b64encode(b'[[], {"job": "\xed\xa0\x80"}, {}]').decode()}, "not JSON"),
        (message(body=[[], {"self": 1}, {}]), "'self'"),
        (message() | {"body": base64.b64encode(b"[" * 70 + b"]" * 70).decode()}, "more than 64 deep"),
        (message(headers={"compression": "application/x-gzip"}), "compressed"),
        (message(headers={"task": "celery.starmap"}), "no task 'celery.starmap'"),
        (message(headers={"task": 5}), "names no task"),
        (message(headers={"eta": "soon"}), "eta"),
        (message(headers={"eta": 5}), "eta"),
        (message(headers={"expires": "9999-12-31T23:59:59-23:59"}), "expires"),
        (message(headers={"retries": "many"}), "retries"),
        (message(headers={"timelimit": 5}), "timelimit"),
        (message(headers={"timelimit": [-1, None]}), "timelimit"),
        (message(headers={"timelimit": ["soon", None]}), "timelimit"),
        (message(headers={"retries": -1}), "retries"),
        (message(headers={"root_id": "a\nb"}), "root_id"),
        (message(properties={"body_encoding": "rot13"}), "body_encoding"),
    ],
)
def test_a_message_that_celery_cannot_read_is_refused_with_reason_and_id(value, reason):
    error = refused(value)
    assert reason in str(error)
    assert str(error).isprintable()
    assert error.job_id == "job-1"


@pytest.mark.parametrize("job_id", [None, 5, "", "a\nb", "\x1b[31m", "x" * 201, ["a"], {}, "\ud800"])
def test_a_message_with_an_invalid_id_is_refused(job_id):
    error = refused(message(headers={"id": job_id}))
    assert "its id is not a printable text of 1 to 200 characters" in str(error)
    is_key = isinstance(job_id, str) and job_id not in ("", "\ud800")
    assert error.job_id == (job_id if is_key else None)


@pytest.mark.parametrize("job_id", ["job-1", "größe", 'a"\n\\', "x" * 201])
def test_a_too_large_message_is_refused_with_the_id_in_its_ends(job_id):
    ends = json.dumps(message(properties={"correlation_id": job_id}))[-1500:].encode()
    assert too_large(ends, 10**9, 10**6).job_id == job_id
    assert "1000000000 bytes" in str(too_large(ends, 10**9, 10**6))
    assert too_large(b"x", 2, 1).job_id is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@given(
    part=st.sampled_from(["headers", "properties", "fields", "body"]),
    name=st.sampled_from(
        [
            *("id", "task", "eta", "expires", "group", "retries", "body", "content-type", "headers"),
            *("properties", "body_encoding", "correlation_id", "reply_to", "argsrepr", "chain"),
        ]
    ),
    value=JSON,
)
def test_any_field_value_is_read_or_refused(part, name, value):
    if part == "fields":
        changed = message() | {name: value}
    elif part == "body":
        changed = message(body=[[], {}, {name: value}])
    else:
        changed = message(**{part: {name: value}})
    reason = ""
    try:
        payload = read(changed).payload
    except BadMessage as error:
        reason = str(error)
    else:
        assert all(str(header).isprintable() for header in payload["headers"].values())
    assert len(reason) < 400
    assert not reason or reason.isprintable()


def body_of(text: bytes) -> list[Any] | str:
    """The body that is read from this JSON text, or why it is refused."""
    try:
        return read(message() | {"body": base64.b64encode(text).decode()}).arguments
    except BadMessage as error:
        return str(error)


CHARACTERS = st.characters(exclude_categories=[]) | st.sampled_from(["\ud800", "_", "\\", '"', "\0"])
KEYS = st.text(CHARACTERS, max_size=8) | st.sampled_from(["a", "__type__", "__type"])
NUMBERS = st.integers() | st.floats() | st.sampled_from([10**400, -0.0, 1e308, 5e-324])
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(CHARACTERS, max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
ODD_CODES = st.sampled_from(b'0123456789eE+-.,:[]{}"\\u_ nN\n\0\xc3\x80')
ODD_BYTES = ODD_CODES.map(lambda code: bytes([code])) | st.sampled_from([b"", b"NaN", b"1e999"])
CHANGES = st.lists(st.tuples(st.integers(0, 60), ODD_BYTES), max_size=3)


@given(value=VALUES, ascii_only=st.booleans(), changes=CHANGES)
def test_a_body_is_read_as_pythons_json_reads_it(
    value: Any, ascii_only: bool, changes: list[tuple[int, bytes]]
) -> None:
    text = json.dumps([[], {"job": value}, {}], ensure_ascii=ascii_only).encode(errors="surrogatepass")
    for place, odd in changes:
        text = text[:place] + odd + text[place + 1 :]
    try:
        expected = json.loads(text.decode())
    except ValueError:
        assert "is not JSON in UTF-8" in body_of(text)
        return
    found = body_of(text)
    if isinstance(found, list):
        assert repr(found) == repr(expected)
    else:
        assert "not JSON" not in found


@pytest.mark.parametrize("key", ['"__type__"', '"\\u005f_type__"'])
def test_an_object_with_a_type_is_not_decoded_but_an_unknown_field(key: str) -> None:
    """kombu would make another object of it, or fail."""
    _, kwargs, _ = body_of(f'[[], {{"job": {{{key}: "datetime", "__value__": "x"}}}}, {{}}]'.encode())
    job = kwargs["job"] | {"series": [SERIES], "pred_len": 1}
    with pytest.raises(JobError) as caught:
        read_job(job, Limits())
    assert (caught.value.code, caught.value.field) == (ErrorCode.UNKNOWN_FIELD, "__type__")


def test_of_a_field_that_is_there_twice_the_last_counts() -> None:
    assert body_of(b'[[], {"job": {"a": 1, "b": 2, "a": 3}}, {}]') == [[], {"job": {"a": 3, "b": 2}}, {}]


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a": ', "}")])
def test_a_body_may_be_nested_as_deep_as_the_limit(opening: str, closing: str) -> None:
    def nested(depth: int) -> bytes:
        return f'[[], {{"job": {opening * depth}1{closing * depth}}}, {{}}]'.encode()

    assert isinstance(body_of(nested(MAX_DEPTH - 2)), list)
    assert body_of(nested(MAX_DEPTH - 1)) == f"its body is nested more than {MAX_DEPTH} deep"


@given(st.binary(max_size=200))
def test_any_bytes_are_refused(raw):
    refused(raw)
