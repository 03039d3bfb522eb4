from typing import Any

import pytest

from kronos_client.contract.columns import encode_column
from kronos_client.contract.errors import JobError
from kronos_client.contract.forecast import ForecastJob
from kronos_client.contract.jobs import Limits, parse_job
from kronos_model.bars.columns import COLUMNS, PRICE_COLUMNS
from tests.kronos_client.contract.contract_jobs import job, series, without

LIMITS = Limits()


def refusal_of(payload: object, limits: Limits = LIMITS) -> JobError:
    with pytest.raises(JobError) as caught:
        parse_job(payload, limits)
    assert len(caught.value.message) < 300
    assert caught.value.message.isprintable()
    return caught.value


def test_defaults_are_those_of_the_contract() -> None:
    read = parse_job(job(), LIMITS)

    assert read.schema_version == 1
    assert (read.horizon, read.pred_len) == (5, 5)
    assert read.sampling.model_dump() == {
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "sample_count": 1,
        "seed": None,
    }
    assert read.output.model_dump() == {
        "quantiles": (0.1, 0.5, 0.9),
        "paths": False,
        "calibrated": False,
        "events": (),
        "statistics": False,
        "repair": True,
        "stream": False,
        "scoring": False,
    }
    assert (read.device, read.allow_fallback, read.priority, read.context_policy) == (
        "auto",
        True,
        "normal",
        "exact",
    )
    assert (read.model, read.deadline_s, read.submitted_at) == (None, None, None)


def test_a_job_survives_the_way_through_json() -> None:
    payload = job(series(amount=encode_column([1.0] * 30)), sampling={"seed": 2**63 - 1})
    read = parse_job(payload, LIMITS)

    assert ForecastJob.model_validate_json(read.model_dump_json()) == read
    assert parse_job(read.model_dump(mode="json"), LIMITS) == read


@pytest.mark.parametrize("payload", [None, 5, "job", [], [job()], True, 1.5])
def test_what_is_no_object_is_refused(payload: object) -> None:
    error = refusal_of(payload)

    assert (error.code, error.field) == ("BAD_TYPE", "job")


@pytest.mark.parametrize("version", [2, 99, 0, -1, 10**30])
def test_other_versions_are_refused_before_anything_else(version: int) -> None:
    error = refusal_of({"schema_version": version, "a field of tomorrow": 1})

    assert (error.code, error.field) == ("UNSUPPORTED_VERSION", "schema_version")


@pytest.mark.parametrize("version", ["1", 1.0, True, None, [1]])
def test_a_version_is_an_integer(version: object) -> None:
    assert refusal_of(job(schema_version=version)).code == "BAD_TYPE"


def test_the_field_that_was_meant_is_named() -> None:
    assert refusal_of(job(predlen=3)).message.endswith("check its spelling; did you mean pred_len?")
    assert refusal_of(job(series(Close=[1.0] * 30))).message.endswith("; did you mean close?")
    for field in ("sample_count", "vwap"):  # in another place, and like none
        assert refusal_of(job(**{field: 3})).message.endswith("check its spelling")


REFUSED: dict[str, list[tuple[dict[str, Any], str]]] = {
    "UNKNOWN_FIELD": [
        (job(colour="red"), "colour"),
        (job(series(vwap=[1.0] * 30)), "series.0.vwap"),
        (job(series(), series("b", Close=[1.0] * 30)), "series.1.Close"),
        (job(sampling={"temprature": 1}), "sampling.temprature"),
        (job(output={"mean": True}), "output.mean"),
        (job(**{"new\nline": 1}), "new\\nline"),
        (job(**{"x" * 10_000: 1}), "x" * 60),
    ],
    "MISSING_FIELD": [
        ({}, "series"),
        (without(job(), "series"), "series"),
        (without(job(), "pred_len"), "pred_len"),
        (job(pred_len=None), "pred_len"),
        (job(series(), without(series("b"), "id")), "series.1.id"),
        (job(without(series(), "timestamps")), "series.0.timestamps"),
        *((job(without(series(), name)), f"series.0.{name}") for name in PRICE_COLUMNS),
    ],
    "BAD_TYPE": [
        (job(series=5), "series"),
        (job(series={"0": series()}), "series"),
        (job(series=[5]), "series.0"),
        (job(series=[None]), "series.0"),
        (job(series(id=5)), "series.0.id"),
        (job(series(timestamps="2024-01-01")), "series.0.timestamps"),
        (job(series(timestamps=None)), "series.0.timestamps"),
        (job(series(timezone=8)), "series.0.timezone"),
        (job(series(seed="7")), "series.0.seed"),
        (job(series(seed=7.0)), "series.0.seed"),
        (job(series(close=None)), "series.0.close"),
        (job(series(close={"0": 1.0})), "series.0.close"),
        (job(series(close=5.0)), "series.0.close"),
        (job(pred_len="5"), "pred_len"),
        (job(pred_len=5.0), "pred_len"),
        (job(pred_len=True), "pred_len"),
        (job(sampling=None), "sampling"),
        (job(sampling=[]), "sampling"),
        (job(sampling={"temperature": "hot"}), "sampling.temperature"),
        (job(sampling={"temperature": True}), "sampling.temperature"),
        (job(sampling={"sample_count": 2.5}), "sampling.sample_count"),
        (job(output={"paths": 1}), "output.paths"),
        (job(output={"repair": "yes"}), "output.repair"),
        (job(output={"quantiles": 0.5}), "output.quantiles"),
        (job(output={"quantiles": ["0.5"]}), "output.quantiles.0"),
        (job(device=0), "device"),
        (job(model=5), "model"),
        (job(allow_fallback="no"), "allow_fallback"),
        (job(deadline_s="60"), "deadline_s"),
    ],
    "BAD_VALUE": [
        (job(series=[]), "series"),
        (job(series(id="")), "series.0.id"),
        (job(series(id="x" * 201)), "series.0.id"),
        (job(series(id="a\nb")), "series.0.id"),
        (job(series(id="\ud800")), "series.0.id"),
        (job(series(timezone="x" * 101)), "series.0.timezone"),
        (job(series(seed=-1)), "series.0.seed"),
        (job(sampling={"seed": 2**63}), "sampling.seed"),
        (job(sampling={"seed": 10**5000}), "sampling.seed"),
        (job(pred_len=0), "pred_len"),
        (job(pred_len=-5), "pred_len"),
        (job(pred_len=10**5000), "pred_len"),
        (job(sampling={"sample_count": 10**5000}), "sampling.sample_count"),
        (job(sampling={"top_k": 10**5000}), "sampling.top_k"),
        (job(sampling={"temperature": 0}), "sampling.temperature"),
        (job(sampling={"temperature": 101}), "sampling.temperature"),
        (job(sampling={"temperature": float("nan")}), "sampling.temperature"),
        (job(sampling={"top_k": -1}), "sampling.top_k"),
        (job(sampling={"top_p": 0}), "sampling.top_p"),
        (job(sampling={"top_p": 1.01}), "sampling.top_p"),
        (job(sampling={"sample_count": 0}), "sampling.sample_count"),
        (job(output={"quantiles": [0.5, 0]}), "output.quantiles.1"),
        (job(output={"quantiles": [1.0]}), "output.quantiles.0"),
        (job(output={"quantiles": [0.5, 0.1, 0.5]}), "output.quantiles"),
        (job(output={"quantiles": [(n + 1) / 50 for n in range(33)]}), "output.quantiles"),
        (job(priority="urgent"), "priority"),
        (job(priority=3), "priority"),
        (job(context_policy="sliding"), "context_policy"),
        (job(deadline_s=0), "deadline_s"),
        (job(deadline_s=float("inf")), "deadline_s"),
        (job(submitted_at=-1), "submitted_at"),
        (job(model=""), "model"),
        (job(lookback=0), "lookback"),
        (job(lookback=None), "lookback"),
        (job(lookback=True), "lookback"),
        (job(lookback=4.0), "lookback"),
        (job(lookback="all"), "lookback"),
    ],
    "DUPLICATE_ID": [(job(series("a"), series("b"), series("a")), "series.2.id")],
    "INVALID_DEVICE": [
        (job(device=device), "device")
        for device in ("", "gpu", "CUDA", "cuda:", "cuda:-1", "cuda:1234", "cpu\n", "mps:0", "{}")
    ],
    "LENGTH_MISMATCH": [
        (job(series(future_timestamps=["2024-02-01"])), "series.0.future_timestamps"),
        (job(series(future_timestamps=[])), "series.0.future_timestamps"),
        (
            job(
                series(future_timestamps=["2024-02-01"]),
                series("b", future_timestamps=["2024-02-01", "2024-02-02"]),
                pred_len=None,
            ),
            "series.1.future_timestamps",
        ),
    ],
}
"""By code: jobs, and the field at fault."""


@pytest.mark.parametrize(
    ("code", "payload", "field"), [(code, *case) for code, cases in REFUSED.items() for case in cases]
)
def test_the_field_at_fault_is_named(code: str, payload: dict[str, Any], field: str) -> None:
    error = refusal_of(payload)

    assert (error.code, error.field) == (code, field)


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("value", ["1.0", True, [1.0], {}])
def test_a_value_that_is_no_number_is_named_with_its_row(name: str, value: object) -> None:
    column: list[object] = [10.0] * 30
    column[17] = value

    error = refusal_of(job(series(**{name: column})))

    assert (error.code, error.field, error.details) == ("BAD_TYPE", f"series.0.{name}", {"row": 17})


@pytest.mark.parametrize("name", ["timestamps", "future_timestamps"])
@pytest.mark.parametrize("value", [None, 20240101, 1704067200.0, ["2024-01-01"]])
def test_a_timestamp_that_is_no_string_is_named_with_its_row(name: str, value: object) -> None:
    error = refusal_of(job(series(**{name: ["2024-01-01", "2024-01-02", value, "2024-01-04", "2024-01-05"]})))

    assert (error.code, error.field, error.details) == ("BAD_TYPE", f"series.0.{name}", {"row": 2})


def test_the_horizon_may_come_from_future_timestamps() -> None:
    future = ["2024-02-01", "2024-02-02"]

    read = parse_job(without(job(series(), series("b", future_timestamps=future)), "pred_len"), LIMITS)

    assert (read.pred_len, read.horizon) == (None, 2)


@pytest.mark.parametrize(
    ("payload", "limits", "code", "field"),
    [
        (job(series("a"), series("b")), {"max_series": 1}, "LIMIT_EXCEEDED", "series"),
        (job(series(num_bars=31)), {"max_bars": 30}, "LIMIT_EXCEEDED", "series.0.timestamps"),
        (job(series(close=[1.0] * 31)), {"max_bars": 30}, "LIMIT_EXCEEDED", "series.0.close"),
        (job(sampling={"sample_count": 9}), {"max_sample_count": 8}, "LIMIT_EXCEEDED",
         "sampling.sample_count"),
        (job(series("a"), series("b"), sampling={"sample_count": 5}), {"max_paths": 9}, "LIMIT_EXCEEDED",
         "sampling.sample_count"),
        (job(), {"max_message_bytes": 500}, "LIMIT_EXCEEDED", "series"),
        (job(series(close="A" * 2000)), {"max_message_bytes": 2000}, "LIMIT_EXCEEDED", "series"),
        (job(**{f"x{n}": 1 for n in range(70)}), {}, "LIMIT_EXCEEDED", "job"),
        (job(series(**{f"x{n}": 1 for n in range(70)})), {}, "LIMIT_EXCEEDED", "series.0"),
        (job(output={f"x{n}": 1 for n in range(70)}), {}, "LIMIT_EXCEEDED", "output"),
        (job(), {"max_pred_len": 4}, "PRED_LEN_TOO_LONG", "pred_len"),
        (job(pred_len=10**9), {}, "PRED_LEN_TOO_LONG", "pred_len"),
        (job(output={"paths": True}, sampling={"sample_count": 200}, pred_len=500),
         {"max_result_bytes": 10**6}, "RESULT_TOO_LARGE", "output"),
        (job(), {"max_result_bytes": 1000}, "RESULT_TOO_LARGE", "output"),
    ],
)  # fmt: skip
def test_limits_are_kept(payload: dict[str, Any], limits: dict[str, int], code: str, field: str) -> None:
    error = refusal_of(payload, Limits(**limits))

    assert (error.code, error.field) == (code, field)
    assert error.details["actual"] > error.details["limit"]


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:0", "cuda:15", "mps"])
def test_devices_are_read(device: str) -> None:
    assert parse_job(job(device=device), LIMITS).device == device


def test_a_job_at_its_limits_is_read() -> None:
    limits = Limits(max_series=2, max_bars=30, max_pred_len=5, max_sample_count=4, max_paths=8)

    parse_job(job(series("a"), series("b"), sampling={"sample_count": 4}), limits)
