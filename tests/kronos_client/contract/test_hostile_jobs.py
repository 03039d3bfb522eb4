"""Jobs that are meant to do harm: each ends in a coded error, within bounded memory, and is hardly repeated.

They come as JSON text, as a worker gets them. What is no JSON at all does not come this far.
"""

import json
import math
import re
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.finetune import FinetuneJob, parse_finetune_job
from kronos_client.contract.forecast import ForecastJob, SeriesInput
from kronos_client.contract.jobs import Limits, PreparedSeries, parse_job, prepare
from kronos_model.bars.columns import COLUMNS
from kronos_model.finetuning.config import FinetuneConfig
from tests.kronos_client.contract.contract_jobs import series, timestamps

LIMITS = Limits()
MAX_BYTES = LIMITS.max_message_bytes
MAX_PEAK = 3
"""Memory for reading a job in addition to the decoded message, as a multiple of the largest message."""
MAX_REPEATED_CHARS = 100
MARK = "x9"


def forecast_job(*several: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"series": list(several) or [series()], "pred_len": 5, **changes}


def finetune_job(**changes: Any) -> dict[str, Any]:
    return {"name": "mine", "data": {"path": "a.csv"}, **changes}


def read_forecast(payload: object) -> tuple[PreparedSeries, ...]:
    return prepare(parse_job(payload, LIMITS), "id", LIMITS)


def read_finetune(payload: object) -> FinetuneJob:
    return parse_finetune_job(payload, LIMITS)


def nested(depth: int, inner: Any = 1) -> Any:
    for _ in range(depth):
        inner = [inner]
    return inner


def nested_objects(depth: int) -> Any:
    inner: Any = {}
    for _ in range(depth):
        inner = {"a": inner}
    return inner


DEEP = sys.getrecursionlimit() - 200  # about as deep as json.loads goes
MANY = MAX_BYTES // 4

# Made when they are used: each is large.
BOMBS: dict[str, tuple[Callable[[object], object], Callable[[], object]]] = {
    "deep-series": (read_forecast, lambda: forecast_job(series=nested(DEEP))),
    "deep-column": (read_forecast, lambda: forecast_job(series(close=[nested(DEEP)] * 30))),
    "deep-timestamps": (read_forecast, lambda: forecast_job(series(timestamps=nested(DEEP)))),
    "many-fields": (read_forecast, lambda: forecast_job(**{f"f{i}": 1 for i in range(MANY // 4)})),
    "many-fields-in-series": (
        read_forecast, lambda: forecast_job(series(**{f"f{i}": 1 for i in range(MANY // 4)}))
    ),
    "many-fields-in-sampling": (
        read_forecast, lambda: forecast_job(sampling={f"f{i}": 1 for i in range(MANY // 4)})
    ),
    "many-series": (read_forecast, lambda: forecast_job(series=[{}] * MANY)),
    "many-quantiles": (read_forecast, lambda: forecast_job(output={"quantiles": [0.5] * MANY})),
    "many-bars": (read_forecast, lambda: forecast_job(series(close=[1] * MANY))),
    "many-timestamps": (read_forecast, lambda: forecast_job(series(timestamps=[""] * MANY))),
    "many-future-timestamps": (read_forecast, lambda: forecast_job(series(future_timestamps=[""] * MANY))),
    "many-bad-values": (
        read_forecast,
        lambda: forecast_job(*(series(str(i), 2, close=[None] * LIMITS.max_bars) for i in range(64))),
    ),
    "long-id": (read_forecast, lambda: forecast_job(series(id=MARK * MANY))),
    "long-model": (read_forecast, lambda: forecast_job(model=MARK * MANY)),
    "long-zone": (read_forecast, lambda: forecast_job(series(timezone=MARK * MANY))),
    "long-device": (read_forecast, lambda: forecast_job(device=MARK * MANY)),
    "long-policy": (read_forecast, lambda: forecast_job(context_policy=MARK * MANY)),
    "long-field": (read_forecast, lambda: forecast_job(**{MARK * MANY: 1})),
    "long-timestamp": (
        read_forecast, lambda: forecast_job(series(timestamps=[*timestamps(29), MARK * (MANY - 1000)]))
    ),
    "long-fraction": (
        read_forecast,
        lambda: forecast_job(series(timestamps=["2024-01-01T00:00:00." + "9" * MANY, *timestamps(29)])),
    ),
    "long-base64": (read_forecast, lambda: forecast_job(series(close="A" * MANY))),
    "short-base64": (read_forecast, lambda: forecast_job(series(close="AAAAAAA="))),
    "padded-base64": (read_forecast, lambda: forecast_job(series(close="=" * 160))),
    "huge-integer": (read_forecast, lambda: forecast_job(sampling={"seed": 10**4000})),
    "huge-integers": (read_forecast, lambda: forecast_job(series(close=[10**400] * 30))),
    "huge-version": (read_forecast, lambda: forecast_job(schema_version=10**4000)),
    "huge-deadline": (read_forecast, lambda: forecast_job(deadline_s=10**4000)),
    "not-a-number": (read_forecast, lambda: forecast_job(series(close=[math.nan] * 30))),
    "infinite": (read_forecast, lambda: forecast_job(submitted_at=math.inf)),
    "truth-values": (read_forecast, lambda: forecast_job(series(close=[True] * 30))),
    "half-a-character": (read_forecast, lambda: forecast_job(series(id="\ud800"))),
    "half-a-character-as-field": (read_forecast, lambda: forecast_job(**{"\ud800": 1})),
    "half-a-character-as-time": (read_forecast, lambda: forecast_job(series(timestamps=["\udfff"] * 30))),
    "half-a-character-as-column": (read_forecast, lambda: forecast_job(series(close="\ud800"))),
    "zone-by-path": (read_forecast, lambda: forecast_job(series(timezone="../../../../etc/passwd"))),
    "zone-with-nul": (read_forecast, lambda: forecast_job(series(timezone="UTC\0"))),
    "zone-that-is-a-folder": (read_forecast, lambda: forecast_job(series(timezone="America"))),
    "deep-config": (read_finetune, lambda: finetune_job(config={"predictor": nested(DEEP)})),
    "deep-objects": (read_finetune, lambda: finetune_job(config={"data": nested_objects(DEEP)})),
    "long-config": (read_finetune, lambda: finetune_job(config={"seed": MARK * MANY})),
    "many-config-fields": (
        read_finetune, lambda: finetune_job(config=dict.fromkeys(map(str, range(10**6))))
    ),
    "long-revision": (
        read_finetune,
        lambda: finetune_job(config={"start": {"model": "kronos-tiny", "model_revision": MARK * 20_000}}),
    ),
    "long-name": (read_finetune, lambda: finetune_job(name=MARK * MANY)),
    "long-path": (read_finetune, lambda: finetune_job(data={"path": MARK * MANY})),
    "many-paths": (read_finetune, lambda: finetune_job(data={"path": ["a"] * MANY})),
    "deep-paths": (read_finetune, lambda: finetune_job(data={"path": nested(DEEP)})),
    "many-instruments": (read_finetune, lambda: finetune_job(data={"instruments": [{}] * MANY})),
    "instruments-at-the-limit": (
        read_finetune, lambda: finetune_job(data={"instruments": [{}] * LIMITS.max_inline_bars})
    ),
    "half-a-character-as-path": (read_finetune, lambda: finetune_job(data={"path": "\ud800"})),
    "half-a-character-in-config": (
        read_finetune, lambda: finetune_job(config={"data": {"columns": {"close": "\ud800"}}})
    ),
    "model-without-end": (
        read_finetune,
        lambda: finetune_job(
            config={
                "start": {
                    "model": {"n_layers": 10**9, "d_model": 8 * 10**9, "n_heads": 1, "ff_dim": 10**9},
                    "tokenizer": "kronos-tiny",
                }
            }
        ),
    ),
    "tokenizer-without-end": (
        read_finetune,
        lambda: finetune_job(
            config={
                "start": {
                    "tokenizer": {
                        "d_model": 10**6, "n_heads": 1, "ff_dim": 10**6,
                        "n_enc_layers": 10**6, "n_dec_layers": 1,
                    }
                }
            }
        ),
    ),
    "samples-without-end": (
        read_finetune, lambda: finetune_job(config={"evaluation": {"sample_count": 10**9}})
    ),
}  # fmt: skip


def repeated_chars(error: JobError) -> int:
    """The longest run of the job's own content in its error."""
    text = f"{error.message} {error.field} {json.dumps(error.details)}"
    return max((len(run) for run in re.findall(rf"(?:{MARK}|9|x|1)+", text)), default=0)


def check_refusal(error: JobError) -> None:
    assert error.code in set(ErrorCode) - {"INTERNAL"}
    assert len(error.message) < 400
    assert error.message.isprintable()
    assert error.field is None or (error.field.isprintable() and len(error.field) < 300)
    assert len(json.dumps(error.details, allow_nan=False)) < 300


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_within_bounded_memory(name: str) -> None:
    read, make = BOMBS[name]
    payload = json.loads(json.dumps(make()))
    tracemalloc.start()
    try:
        with pytest.raises(JobError) as refused:
            read(payload)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MAX_PEAK * MAX_BYTES
    check_refusal(refused.value)
    assert repeated_chars(refused.value) <= MAX_REPEATED_CHARS


def test_the_largest_sound_job_is_read_within_bounded_memory() -> None:
    columns = {name: [1.0625] * 2000 for name in COLUMNS}
    payload = forecast_job(*(series(str(i), 2000, **columns) for i in range(LIMITS.max_series)))
    size = len(json.dumps(payload, separators=(",", ":")))
    assert MAX_BYTES * 0.9 < size < MAX_BYTES
    tracemalloc.start()
    try:
        assert len(read_forecast(payload)) == LIMITS.max_series
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MAX_PEAK * MAX_BYTES


def test_of_a_field_that_is_there_twice_the_last_counts() -> None:
    """As all of Python's readers of JSON have it; clients and workers agree."""
    text = json.dumps(forecast_job())[:-1] + ', "pred_len": 7}'
    assert len(read_forecast(json.loads(text))[0].future_stamps) == 7


halves = st.sampled_from(["\ud800", "\udfff", "a\ud800"])
numbers = st.one_of(
    st.integers(),
    st.floats(),
    st.sampled_from([10**400, -(10**400), 1e308, -0.0, 2**63, 2**63 - 1, 2**31, math.nan, math.inf]),
)
scalars = st.one_of(st.none(), st.booleans(), numbers, st.text(max_size=20), halves)
anything = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.one_of(st.text(max_size=8), halves), inner, max_size=4),
    ),
    max_leaves=12,
)
FORECAST_FIELDS = [*ForecastJob.model_fields, "more"]
SERIES_FIELDS = [*SeriesInput.model_fields, "more"]
FINETUNE_FIELDS = [*FinetuneJob.model_fields, "more"]
CONFIG_FIELDS = [*FinetuneConfig.model_fields, "more"]
ZONES = ["UTC", "America/New_York", "Asia/Kathmandu", "Factory", "right/UTC"]
TIMES = r"[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9]{2}:[0-9]{2}(:[0-9]{2})?)?(Z|[+-][0-9]{2}:?[0-9]{2})?"


def outcome(read: Callable[[object], object], payload: object) -> None:
    """A job or a JobError; whatever else comes fails the test."""
    try:
        read(payload)
    except JobError as error:
        check_refusal(error)


@given(payload=anything)
@example(payload={"series": [{}]})
@example(payload={})
def test_anything_is_a_job_or_refused(payload: object) -> None:
    outcome(read_forecast, payload)
    outcome(read_finetune, payload)


@given(changes=st.dictionaries(st.sampled_from(FORECAST_FIELDS), anything, min_size=1, max_size=3))
def test_a_forecast_with_anything_in_its_fields_is_read_or_refused(changes: dict[str, Any]) -> None:
    outcome(read_forecast, forecast_job(**changes))


@given(changes=st.dictionaries(st.sampled_from(SERIES_FIELDS), anything, min_size=1, max_size=3))
def test_a_series_with_anything_in_its_fields_is_read_or_refused(changes: dict[str, Any]) -> None:
    outcome(read_forecast, forecast_job(series(**changes)))
    outcome(read_finetune, finetune_job(data={"instruments": [series(**changes)]}))


@given(
    row=st.integers(0, 29),
    name=st.sampled_from(["timestamps", "open", "high", "low", "close", "volume"]),
    value=anything,
)
def test_a_series_with_anything_in_one_bar_is_read_or_refused(row: int, name: str, value: object) -> None:
    bars = series()
    bars[name][row] = value
    outcome(read_forecast, forecast_job(bars))


@given(text=st.from_regex(TIMES, fullmatch=True), zone=st.one_of(st.none(), st.sampled_from(ZONES)))
def test_a_series_with_any_time_in_it_is_read_or_refused(text: str, zone: str | None) -> None:
    outcome(read_forecast, forecast_job(series(timestamps=[*timestamps(29), text], timezone=zone)))
    outcome(read_forecast, forecast_job(series(future_timestamps=[text] * 5, timezone=zone)))


@given(changes=st.dictionaries(st.sampled_from(FINETUNE_FIELDS), anything, min_size=1, max_size=3))
def test_a_finetuning_job_with_anything_in_its_fields_is_read_or_refused(changes: dict[str, Any]) -> None:
    outcome(read_finetune, finetune_job(**changes))


@given(
    changes=st.dictionaries(st.sampled_from(CONFIG_FIELDS), anything, min_size=1, max_size=3),
    data=st.dictionaries(st.sampled_from(["path", "columns", "lookback", "validation_from"]), anything),
    start=st.dictionaries(st.sampled_from(["model", "tokenizer", "model_revision"]), anything),
)
def test_a_config_with_anything_in_its_fields_is_read_or_refused(
    changes: dict[str, Any], data: dict[str, Any], start: dict[str, Any]
) -> None:
    outcome(read_finetune, finetune_job(config={"data": data, "start": start} | changes))
