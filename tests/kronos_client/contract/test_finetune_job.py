import copy
import json
from typing import Any

import numpy as np
import pytest

from kronos_client.contract.columns import encode_column
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.finetune import MAX_CONFIG_BYTES, FinetuneJob, parse_finetune_job
from kronos_client.contract.job_limits import Limits
from kronos_client.contract.jobs import prepare_instruments
from kronos_client.contract.schemas import example, finetune_job_schema
from kronos_model.bars.columns import PRICE_COLUMNS
from kronos_model.finetuning.config import FinetuneConfig
from tests.kronos_client.contract.contract_jobs import series, timestamps, without

LIMITS = Limits()
SHORT = {"lookback": 20, "pred_len": 3}


def job(**changes: Any) -> dict[str, Any]:
    """A job on a file."""
    return copy.deepcopy({"name": "mine", "config": {}, "data": {"path": "a.csv"}, **changes})


def inline(*instruments: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A job that carries its candles, with windows of 23 bars."""
    return job(
        data={"instruments": list(instruments) or [series()]}, **({"config": {"data": SHORT}} | changes)
    )


def refusal_of(payload: object, limits: Limits = LIMITS) -> JobError:
    with pytest.raises(JobError) as caught:
        parse_finetune_job(payload, limits)
    assert len(caught.value.message) < 300
    assert caught.value.message.isprintable()
    assert caught.value.code in set(ErrorCode)
    return caught.value


def assert_refused(payload: object, code: str, field: str) -> JobError:
    error = refusal_of(payload)
    assert (error.code, error.field) == (code, field)
    return error


def test_defaults_are_those_of_the_contract() -> None:
    read = parse_finetune_job({"name": "mine", "data": {"path": "a.csv"}}, LIMITS)

    assert (read.schema_version, read.name, read.config) == (1, "mine", {})
    assert (read.data.path, read.data.instruments) == ("a.csv", None)
    assert (read.device, read.allow_fallback, read.priority) == ("auto", True, "normal")
    assert (read.deadline_s, read.submitted_at) == (None, None)


@pytest.mark.parametrize(
    "payload", [job(), job(data={"path": ["a.csv", "b/c.parquet"]}), inline(), example("finetune-job")]
)
def test_a_job_survives_the_way_through_json(payload: dict[str, Any]) -> None:
    read = parse_finetune_job(payload, LIMITS)

    assert FinetuneJob.model_validate_json(read.model_dump_json()) == read
    assert parse_finetune_job(json.loads(read.model_dump_json()), LIMITS) == read


REFUSED: dict[str, list[tuple[Any, str]]] = {
    "DUPLICATE_ID": [(inline(series(), series("b"), series()), "data.instruments.2.id")],
    "INVALID_DEVICE": [(job(device="gpu"), "device")],
    "UNSUPPORTED_VERSION": [({"schema_version": 2, "new": 1}, "schema_version")],
    "UNKNOWN_FIELD": [
        (job(colour="red"), "colour"),
        (job(model="kronos-tiny"), "model"),
        (job(data={"path": "a.csv", "url": "http://"}), "data.url"),
        (inline(series(seed=7)), "data.instruments.0.seed"),
        (inline(series(), series("b", timezone="UTC")), "data.instruments.1.timezone"),
        (job(**{"new\nline": 1}), "new\\nline"),
    ],
    "MISSING_FIELD": [
        (without(job(), "name"), "name"),
        (without(job(), "data"), "data"),
        (job(data={}), "data"),
        (job(data={"path": None, "instruments": None}), "data"),
        (inline(without(series(), "timestamps")), "data.instruments.0.timestamps"),
        *((inline(without(series(), name)), f"data.instruments.0.{name}") for name in PRICE_COLUMNS),
    ],
    "BAD_TYPE": [
        (job(name=5), "name"),
        (job(config=[]), "config"),
        (job(config="config.yaml"), "config"),
        (job(config=None), "config"),
        (job(data="a.csv"), "data"),
        (job(data={"path": 5}), "data.path"),
        (job(data={"path": {"0": "a"}}), "data.path"),
        (job(data={"path": ["a.csv", None]}), "data.path.1"),
        (job(data={"instruments": {"a": series()}}), "data.instruments"),
        (job(data={"instruments": [series(), 5]}), "data.instruments.1"),
        (inline(series(id=5)), "data.instruments.0.id"),
        (inline(series(timestamps="2024-01-01")), "data.instruments.0.timestamps"),
        (inline(series(close=5.0)), "data.instruments.0.close"),
        (job(device=0), "device"),
        (job(allow_fallback="no"), "allow_fallback"),
        (job(deadline_s="60"), "deadline_s"),
    ],
    "BAD_VALUE": [
        (job(data={"path": []}), "data.path"),
        (job(data={"path": ["a"] * 1001}), "data.path"),
        (job(data={"instruments": []}), "data.instruments"),
        (job(data={"path": "a", "instruments": [series()]}), "data"),
        (inline(series(id="")), "data.instruments.0.id"),
        (inline(series(id="a\nb")), "data.instruments.0.id"),
        (job(deadline_s=0), "deadline_s"),
        (job(deadline_s=float("inf")), "deadline_s"),
        (job(submitted_at=-1), "submitted_at"),
        (job(priority="urgent"), "priority"),
    ],
}
"""By code: jobs, and the field at fault."""


@pytest.mark.parametrize(
    ("code", "payload", "field"), [(code, *case) for code, cases in REFUSED.items() for case in cases]
)
def test_the_field_at_fault_is_named(code: str, payload: dict[str, Any], field: str) -> None:
    error = refusal_of(payload)

    assert (error.code, error.field) == (code, field)


@pytest.mark.parametrize(
    "name",
    ["", "Mine", "-a", ".a", "a/b", "a b", "a\n", "ä", "a@1", "a" * 65, "..", "kronos-tiny", "a\u0660"],
)
def test_names_that_no_model_can_have_are_refused(name: str) -> None:
    assert_refused(job(name=name), "BAD_VALUE", "name")


@pytest.mark.parametrize("name", ["a", "0", "my-model_v1.2", "a" * 64, "kronos-tiny-2"])
def test_names_that_a_model_can_have_are_read(name: str) -> None:
    assert parse_finetune_job(job(name=name), LIMITS).name == name


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "../a.csv", "a/../../b", "a/..", "..", "~/a", "~root/a", "a\\b", "C:\\a", "//host/a"],
)
def test_paths_outside_the_data_folder_are_refused(path: str) -> None:
    assert_refused(job(data={"path": path}), "DATA_NOT_ALLOWED", "data.path")
    assert_refused(job(data={"path": ["a.csv", path]}), "DATA_NOT_ALLOWED", "data.path.1")


@pytest.mark.parametrize("path", ["", "a\0b", "a\nb", "x" * 1001, "\ud800"])
def test_paths_that_are_none_are_refused(path: str) -> None:
    assert_refused(job(data={"path": path}), "BAD_VALUE", "data.path")
    assert_refused(job(data={"path": [path]}), "BAD_VALUE", "data.path.0")


@pytest.mark.parametrize("path", ["a.csv", ".", "./a", "daily/a..b.csv", "..a", "ä b.csv", ["a", "b"]])
def test_paths_inside_are_read(path: str | list[str]) -> None:
    read = parse_finetune_job(job(data={"path": path}), LIMITS).data.path

    assert read == (path if isinstance(path, str) else tuple(path))


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"colour": "red"}, "config.colour"),
        ({"predictor": {"epochs": 0}}, "config.predictor.epochs"),
        ({"stages": ["predictor", "tokenizer"]}, "config"),
        ({"data": 5}, "config.data"),
        ({"data": None}, "config.data"),
        ({"data": {"columns": {"vwap": "x"}}}, "config.data.columns.vwap.[key]"),
        ({"data": {"validation_fraction": 0.6, "test_fraction": 0.6}}, "config.data"),
        ({"data": {"path": "a.csv"}}, "config.data.path"),
        ({"data": {"path": None}}, "config.data.path"),
        ({"training_device": "cpu"}, "config.training_device"),
        ({"training_device": None}, "config.training_device"),
        ({"predictor": {"x\ny": 1}}, "config.predictor.x\\ny"),
        ({"seed": 2**63}, "config.seed"),
        ({"seed": 10**5000}, "config"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_the_config_is_named(config: dict[str, Any], field: str) -> None:
    assert_refused(job(config=config), "INVALID_CONFIG", field)


def test_the_training_device_may_be_left_to_the_job() -> None:
    read = parse_finetune_job(job(config={"training_device": "auto"}, device="cuda:1"), LIMITS)

    assert (read.device, read.finetune_config("x").training_device) == ("cuda:1", "auto")


def test_the_config_is_built_with_the_workers_path() -> None:
    config = {"data": {"lookback": 30, "columns": {"close": "Adj Close"}}, "predictor": {"epochs": 3}}
    read = parse_finetune_job(job(config=config), LIMITS)

    built = read.finetune_config("/data/a.csv")

    assert built == FinetuneConfig.model_validate(
        {
            "data": {"path": "/data/a.csv", "lookback": 30, "columns": {"close": "Adj Close"}},
            "predictor": {"epochs": 3},
        }
    )
    assert read.finetune_config(("/data/a", "/data/b")).data.paths == ("/data/a", "/data/b")
    assert read.config == config


@pytest.mark.parametrize("part", ["model", "tokenizer"])
@pytest.mark.parametrize(
    "name",
    [
        "/models/a",
        "./a",
        "../a",
        "a/../b",
        "a/..",
        "~/a",
        "a\\b",
        "a/b/c",
        ".a",
        "",
        "a\0",
        "a b",
        "a@",
        "a\n",
    ],
)
def test_models_by_path_are_refused(part: str, name: str) -> None:
    start = {"model": "kronos-tiny", "tokenizer": "kronos-tiny"} | {part: name}

    assert_refused(job(config={"start": start}), "MODEL_NOT_ALLOWED", f"config.start.{part}")


@pytest.mark.parametrize(
    "name", ["kronos-tiny", "NeoQuasar/Kronos-small", "my-model", "my-model@12", "a.b_c"]
)
def test_models_by_name_are_read(name: str) -> None:
    parse_finetune_job(job(config={"start": {"model": name, "tokenizer": name}}), LIMITS)


SHAPE = {"n_layers": 1, "d_model": 16, "n_heads": 2, "ff_dim": 32}


def test_a_start_from_scratch_is_read() -> None:
    start = {"model": SHAPE, "tokenizer": "kronos-tiny"}
    read = parse_finetune_job(job(config={"start": start, "stages": ["predictor"]}), LIMITS)

    assert (
        read.finetune_config().start.model
        == FinetuneConfig.model_validate({"data": {"path": "."}, "start": start}).start.model
    )


BAD_CANDLES = [  # test_preparing has every defect
    ({"close": [float("nan")] * 30}, "NOT_FINITE", "close", 0),
    ({"low": [1.0] * 29}, "LENGTH_MISMATCH", "low", 29),
    ({"timestamps": ["yesterday"] * 30}, "BAD_TIMESTAMP", "timestamps", 0),
]


@pytest.mark.parametrize(("changes", "code", "column", "row"), BAD_CANDLES)
def test_inline_candles_are_checked_by_field_and_row(changes, code, column, row) -> None:
    error = assert_refused(inline(series(), series("b", **changes)), code, f"data.instruments.1.{column}")

    assert error.details["row"] == row


def test_an_instrument_without_bars_is_refused() -> None:
    empty = series(num_bars=0)

    assert_refused(inline(series(), empty | {"id": "b"}), "EMPTY_SERIES", "data.instruments.1.open")


def test_inline_candles_come_out_as_they_were() -> None:
    close = np.linspace(10, 20, 30)
    column = {"close": encode_column(close), "high": [30.0] * 30}
    read = parse_finetune_job(inline(series(), series("b", **column)), LIMITS)
    assert read.data.instruments is not None

    first, second = prepare_instruments(read.data.instruments)

    assert (first.id, second.id) == ("a", "b")
    assert second.timestamps.texts == tuple(timestamps(30))
    assert list(second.columns) == ["open", "high", "low", "close", "volume"]
    np.testing.assert_allclose(second.columns["close"], close, rtol=1e-6)


@pytest.mark.parametrize(
    ("changes", "code", "field", "numbers"),
    [
        ({"pred_len": 5}, "TRAINING_DATA_INVALID", "data.instruments", "at most 24 bars"),
        ({"pred_len": 4}, "TRAINING_DATA_INVALID", "config.data.validation_fraction", "needs 4 there"),
        ({"validation_from": "x", "test_from": "y"}, "INVALID_CONFIG", "config.data.validation_from", "'x'"),
    ],
)
def test_inline_candles_that_no_worker_can_cut_into_parts_are_refused(
    changes: dict[str, Any], code: str, field: str, numbers: str
) -> None:
    config = {"data": {"lookback": 20} | changes}
    assert numbers in assert_refused(inline(series(), config=config), code, field).message
    parse_finetune_job(inline(series(), config={"data": {"lookback": 20, "pred_len": 3}}), LIMITS)


@pytest.mark.parametrize("field", ["columns", "id_column", "date_format"])
def test_what_is_for_files_is_refused_beside_inline_candles(field: str) -> None:
    value = {"columns": {"close": "Adj Close"}, "id_column": "ticker", "date_format": "%Y"}[field]
    config = {"data": SHORT | {field: value}}

    assert_refused(inline(config=config), "INVALID_CONFIG", f"config.data.{field}")


@pytest.mark.parametrize(
    ("payload", "limits", "field"),
    [
        (inline(series("a"), series("b")), {"max_inline_bars": 59}, "data.instruments"),
        (inline(series(timestamps=["x"] * 61)), {"max_inline_bars": 60}, "data.instruments"),
        (inline(series(close="A" * 2000)), {"max_inline_bars": 60}, "data.instruments"),
        (inline(*[{"id": str(n)} for n in range(61)]), {"max_inline_bars": 60}, "data.instruments"),
        (inline(), {"max_message_bytes": 500}, "data.instruments"),
        (job(**{f"x{n}": 1 for n in range(70)}), {}, "job"),
        (job(data={f"x{n}": 1 for n in range(70)}), {}, "data"),
        (inline(series(**{f"x{n}": 1 for n in range(70)})), {}, "data.instruments.0"),
        (job(config={"x": "y" * MAX_CONFIG_BYTES}), {}, "config"),
    ],
)
def test_limits_are_kept(payload: dict[str, Any], limits: dict[str, int], field: str) -> None:
    error = refusal_of(payload, Limits(**limits))

    assert (error.code, error.field) == ("LIMIT_EXCEEDED", field)
    assert error.details["actual"] > error.details["limit"]


def test_the_schema_has_the_configs_fields_but_those_that_the_job_says() -> None:
    parts = finetune_job_schema()["$defs"]

    assert set(parts["FinetuneConfig"]["properties"]) == set(FinetuneConfig.model_fields) - {
        "training_device"
    }
    assert "lookback" in parts["DataConfig"]["properties"]
    assert "path" not in parts["DataConfig"]["properties"]


def test_a_job_at_its_limits_is_read() -> None:
    parse_finetune_job(
        inline(series("a"), series("b")), Limits(max_inline_bars=60, max_bars=10, max_series=1)
    )


def test_a_config_nested_without_end_is_refused() -> None:
    config: dict[str, Any] = {}
    for _ in range(100_000):
        config = {"a": config}

    assert_refused({"name": "mine", "data": {"path": "a"}, "config": config}, "INVALID_CONFIG", "config")
