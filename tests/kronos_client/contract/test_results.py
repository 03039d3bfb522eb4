import json
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from pydantic import ValidationError

from kronos_client.contract.backtest import BacktestResult
from kronos_client.contract.errors import JobError
from kronos_client.contract.forecast import ForecastJob, Output
from kronos_client.contract.jobs import Limits, parse_job, prepare, result_bytes
from kronos_client.contract.model_info import ModelInfo
from kronos_client.contract.results import ForecastResult, SeriesForecast, Timings, series_result
from kronos_client.contract.schemas import example
from kronos_client.contract.worker_status import WORKER_STATUS
from kronos_model.bars.columns import COLUMNS
from kronos_model.bars.synthetic import candles
from kronos_model.forecast import Forecast
from tests.kronos_client.contract.contract_jobs import job, series, timestamps


def result_of(read: ForecastJob) -> ForecastResult:
    rng = np.random.default_rng(1)
    shape = (read.sampling.sample_count, read.horizon, len(COLUMNS))
    forecasts = []
    for prepared in prepare(read, "an id", Limits()):
        paths = (-1e12 * rng.random(shape)).astype(np.float32)
        forecasts.append(series_result(prepared, Forecast(paths, prepared.seed), read.output))
    return ForecastResult(
        series=tuple(forecasts),
        model=ModelInfo(id="m", revision=None, tokenizer_id="t", tokenizer_revision=None),
        device="cpu",
        queue="cpu",
        worker="celery@here",
        timings_ms=Timings(queued=1, prefill=2, decode=3, total=6),
    )


def series_of(**output: object) -> SeriesForecast:
    return result_of(parse_job(job(sampling={"sample_count": 7, "seed": 3}, output=output), Limits())).series[
        0
    ]


def test_a_result_holds_mean_and_quantiles_by_column() -> None:
    one = series_of(quantiles=[0.25, 0.5])

    assert list(one.mean) == list(COLUMNS)
    assert {len(values) for values in one.mean.values()} == {5}
    assert list(one.quantiles) == ["0.25", "0.5"]
    assert all(list(table) == list(COLUMNS) for table in one.quantiles.values())
    assert (one.id, one.seed, one.paths, len(one.timestamps)) == ("a", 3, None, 5)


def test_paths_come_when_asked_for_and_agree_with_the_mean() -> None:
    one = series_of(paths=True, quantiles=[])

    assert one.paths is not None
    assert one.quantiles == {}
    assert np.shape(one.paths["close"]) == (7, 5)
    assert np.allclose(np.mean(one.paths["close"], axis=0), one.mean["close"])


def test_each_series_has_its_own_warnings_and_the_result_lists_all() -> None:
    guessed, given = (
        series("XY", num_bars=10),
        series("Z", future_timestamps=timestamps(5, start="2024-02-01")),
    )
    both, one = (result_of(parse_job(job(*some), Limits())) for some in ((guessed, given), (guessed,)))
    ((text,), none) = (each.warnings for each in both.series)

    assert none == ()
    assert both.all_warnings() == [f"Series 'XY': {text}"]
    assert one.model_copy(update={"warnings": ("few paths",)}).all_warnings() == ["few paths", text]


def test_a_result_survives_the_way_through_json() -> None:
    result = result_of(parse_job(job(output={"paths": True}), Limits()))

    assert ForecastResult.model_validate(json.loads(json.dumps(result.model_dump(mode="json")))) == result


def test_a_result_of_a_newer_worker_is_still_read() -> None:
    payload = result_of(parse_job(job(), Limits())).model_dump(mode="json")

    assert ForecastResult.model_validate(payload | {"of_tomorrow": 1}).device == "cpu"


def test_a_result_never_holds_what_json_cannot_say() -> None:
    (prepared,) = prepare(parse_job(job(), Limits()), "an id", Limits())
    forecast = Forecast(np.full((1, 5, 6), np.nan, dtype=np.float32), 1)

    with pytest.raises(ValidationError):
        series_result(prepared, forecast, parse_job(job(), Limits()).output)


@pytest.mark.parametrize(
    "output",
    [
        {"paths": False},
        {"paths": True},
        {
            "events": ["high>=last  +  01234567890123456789.01234567890123456789 %   by       end"] * 32,
            "statistics": True,
        },
    ],
)
def test_the_estimate_bounds_the_results_size(output: dict[str, Any]) -> None:
    read = parse_job(
        job(series("a" * 200), series("b"), sampling={"sample_count": 9}, output=output, pred_len=60),
        Limits(),
    )

    size = len(json.dumps(result_of(read).model_dump(mode="json")["series"]))

    assert size <= result_bytes(read) <= 2 * size


@pytest.mark.parametrize(
    "name", [name for name, field in Output.model_fields.items() if field.annotation is bool]
)
def test_the_estimate_grows_with_each_output(name: str) -> None:
    """By as many bytes as the result. ``scoring`` is only asked for by workers, in small jobs."""
    sizes, estimates = [], []
    for chosen in (False, True):
        output = {"quantiles": [0.5], name: chosen}
        read = parse_job(job(sampling={"sample_count": 9}, output=output, pred_len=60), Limits())
        sizes.append(len(json.dumps(result_of(read).model_dump(mode="json")["series"])))
        estimates.append(result_bytes(read))

    growth, estimated = sizes[1] - sizes[0], estimates[1] - estimates[0]
    assert growth <= max(100, estimated) or name == "scoring", f"count {name} in jobs.py result_bytes"


def test_a_frame_is_the_mean_by_time() -> None:
    pytest.importorskip("pandas", reason="frames need pandas")
    frame = series_of().frame()

    assert list(frame.columns) == list(COLUMNS)
    assert [str(at) for at in frame.index[:2]] == ["2024-01-02 06:00:00", "2024-01-02 07:00:00"]


def test_a_frame_over_a_clock_change_is_in_utc() -> None:
    pytest.importorskip("pandas", reason="frames need pandas")
    one = series_of().model_copy(
        update={
            "timestamps": tuple(
                f"2024-03-10T{hour:02}:00-0{5 if hour < 2 else 4}:00" for hour in (0, 1, 3, 4, 5)
            )
        }
    )

    assert [at.hour for at in one.frame().index] == [5, 6, 7, 8, 9]


def test_workers_of_0_1_0_name_no_engine() -> None:
    older = example("forecast-result")
    del older["engine"]
    assert ForecastResult.model_validate(older).engine is None
    status = example("worker-status")
    for model in status["models"]:
        del model["engine"], model["engine_warning"]
    read = WORKER_STATUS.validate_python(status)
    assert read.models[0].engine is None
    assert read.all_warnings() == []


def two_series(**changed: Any) -> ForecastResult:
    result = ForecastResult.model_validate(example("forecast-result"))
    warnings = ("small was trained on synthetic candles: for trying the service, not for trading.",)
    return ForecastResult(**{**dict(result), "warnings": warnings, **changed})


def test_a_result_has_one_line_however_much_it_holds() -> None:
    result = two_series()
    for text in (
        repr(result),
        repr(result.series[0]),
        repr(BacktestResult.model_validate(example("backtest-result"))),
    ):
        assert "\n" not in text
        assert len(text) < 300
    assert f"model={result.model.id!r}" in repr(result)


def test_a_frame_has_the_quantiles_if_they_are_asked_for() -> None:
    pytest.importorskip("pandas", reason="frames need pandas")
    one = series_of()
    frame = one.frame(quantiles=True)
    assert list(frame.columns[:6]) == list(COLUMNS)
    assert list(frame.columns[6:]) == [f"{column}_q{level}" for level in one.quantiles for column in COLUMNS]
    assert frame["close_q0.1"].tolist() == list(one.quantiles["0.1"]["close"])


def test_a_notebook_shows_a_small_table_and_the_fan() -> None:
    result = two_series()
    series = result.series[0].model_copy(update={"id": "<A&B>"})
    page = ElementTree.fromstring(f"<div>{two_series(series=(series,) * 7)._repr_html_()}</div>")
    assert len(page.findall("table")) == len(page.findall("{*}svg")) == 5
    assert "… and 2 more series" in "".join(page.itertext())
    assert "".join(page.itertext()).count("for trying the service, not for trading") == 1
    drawn = ElementTree.fromstring(f"<div>{series._repr_html_()}</div>")
    assert drawn.find("p").text.startswith("<A&B>: ")
    assert len(drawn.findall("table/tr")) == 1 + min(4, len(series.timestamps))
    fan = drawn.find("{*}svg")
    assert len(fan.findall("{*}polygon")) == len(series.quantiles) // 2
    points = [tuple(map(float, point.split(","))) for part in fan for point in part.get("points").split()]
    assert {x for x, _ in points} >= {0.0, 480.0}
    assert (min(y for _, y in points), max(y for _, y in points)) == (0.0, 140.0)


def test_a_plot_has_the_forecast_after_the_candles(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="plots need Matplotlib")
    from matplotlib import pyplot

    pyplot.switch_backend("agg")
    result, bars = two_series(), candles(seed=1, bars=40).as_dict()
    horizon, name = len(result.series[0].timestamps), result.series[0].id
    try:
        for given, first in ((bars, 39), (None, 0)):
            prices = result.plot(given)
            (line,) = [line for line in prices.lines if line.get_label() == "close, mean of paths"]
            assert line.get_xdata()[0] == first
            assert prices.get_title(loc="left") == f"{name}: {horizon} bars ahead"
            assert line.get_xdata()[-1] == (40 if given else 0) + horizon - 1
            shown = [text.get_text() for text in prices.texts]
            assert [text.count("for trying the service, not for trading") for text in shown] == [1]
        alone = result.series[0].model_copy(update={"id": "0"}).plot(result.series[0].frame())
        assert [text.get_text() for text in alone.texts] == ["for trying the service, not for trading"]
        assert alone.figure is not prices.figure
        assert alone.get_title(loc="left") == f"{horizon} bars ahead"
    finally:
        pyplot.close("all")


def test_a_plot_refuses_candles_without_our_columns():
    pytest.importorskip("matplotlib", reason="plots need Matplotlib")
    bars = candles(seed=1, bars=40).as_dict()
    with pytest.raises(JobError) as refused:
        two_series().plot({"zeit" if name == "close" else name: column for name, column in bars.items()})
    assert (refused.value.code, refused.value.field) == ("MISSING_COLUMN", "close")
