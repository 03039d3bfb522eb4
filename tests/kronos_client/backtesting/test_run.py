"""Backtests through the fake client, whose forecasts are random walks: stopped, continued and scored."""

import asyncio
import json
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from kronos_client.backtesting import reporting
from kronos_client.backtesting.run import BacktestRun, find_lookback, read_candles
from kronos_client.backtesting.window_plan import BacktestOptions, BacktestPlan
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.worker_status import ModelStatus
from kronos_client.testing import FakeAsyncForecastClient, FakeForecastClient, fake_worker
from kronos_model.bars.timestamps import write_times
from kronos_model.checkpoints.names import FOR_TRYING, short_name_taken

OPTIONS = {"lookback": 40, "horizon": 5, "windows": 12, "samples": 8}


def walk(seed: int, num_bars: int = 300) -> pd.DataFrame:
    closes = 50 * np.exp(0.01 * np.random.default_rng(seed).normal(size=num_bars).cumsum())
    times = pd.date_range("2024-01-01", periods=num_bars, freq="D", name="timestamps")
    opens = np.concatenate([[50], closes[:-1]])
    high, low = np.maximum(opens, closes) * 1.001, np.minimum(opens, closes) * 0.999
    return pd.DataFrame(
        {"open": opens, "high": high, "low": low, "close": closes, "volume": 1.0}, index=times
    )


CANDLES = {"a": walk(1), "b": walk(2)}


@pytest.fixture
def client():
    with FakeForecastClient() as client:
        yield client


@pytest.fixture(autouse=True)
def no_charts(monkeypatch: pytest.MonkeyPatch):
    """Charts take seconds; ``test_page`` draws them."""
    monkeypatch.setattr(reporting, "write_page", lambda path, *_: path.write_text("page"))


def read(folder: Path) -> dict:
    return json.loads((folder / "report.json").read_text())


class Stopped(Exception):
    pass


def test_a_stopped_backtest_continues_and_reports_the_same(client, tmp_path):
    whole = client.backtest(CANDLES, tmp_path / "whole", models=["one", "two"], **OPTIONS)

    def stop(done: int, total: int) -> None:
        assert total == 48
        if done >= 16:
            raise Stopped

    with suppress(Stopped):
        client.backtest(CANDLES, tmp_path / "cut", models=["one", "two"], on_progress=stop, **OPTIONS)
    assert not (tmp_path / "cut" / "report.json").exists()
    before = len(client.jobs)
    assert client.backtest(CANDLES, tmp_path / "cut", models=["one", "two"], **OPTIONS) == whole
    assert len(client.jobs) - before < 12
    assert read(tmp_path / "cut") == whole == read(tmp_path / "whole")
    assert whole["num_windows"] == 24
    assert set(whole["models"]) == {"one", "two"}


def test_windows_are_jobs_of_low_priority_that_read_no_bar_after_their_cut(client, tmp_path):
    client.backtest({"a": CANDLES["a"]}, tmp_path, **OPTIONS)
    jobs = list(client.jobs.values())
    assert {job["priority"] for job in jobs} == {"low"}
    assert len({job["sampling"]["seed"] for job in jobs}) == len(jobs) == 3
    for job in jobs:
        assert job["lookback"] == 40
        for series in job["series"]:
            assert len(series["timestamps"]) == 40
            assert len(series["future_timestamps"]) == 5
            assert max(series["timestamps"]) < min(series["future_timestamps"])


def test_asyncio_gives_the_same_report(client, tmp_path):
    async def run():
        async with FakeAsyncForecastClient(client) as own:
            return await own.backtest(CANDLES, tmp_path / "awaited", **OPTIONS)

    assert asyncio.run(run()) == client.backtest(CANDLES, tmp_path / "plain", **OPTIONS)


def test_forecasts_are_a_table_with_what_followed(client, tmp_path):
    report = client.backtest({"a": CANDLES["a"]}, tmp_path, **OPTIONS)
    table = pq.read_table(tmp_path / "forecasts.parquet").to_pandas()
    assert len(table) == 12 * 5
    assert set(table["model"]) == {"stand-in"} == set(report["models"])
    last = table.iloc[-1]
    assert (last["instrument"], last["step"]) == ("a", 5)
    bar = CANDLES["a"].loc[last["timestamp"]]
    for column in ("open", "close", "volume"):
        assert last[f"{column}_actual"] == pytest.approx(bar[column], rel=1e-6)
    assert (table["close_q0.1"] < table["close_mean"]).all()
    assert (table["close_mean"] < table["high_q0.95"]).all()


def test_the_table_has_the_offsets_of_the_candles_times(client, tmp_path):
    aware = CANDLES["a"].tz_localize("Europe/Berlin")
    client.backtest({"a": aware}, tmp_path, **OPTIONS)
    times = pq.read_table(tmp_path / "forecasts.parquet")["timestamp"].to_pylist()
    assert {time[-6:] for time in times} <= {"+01:00", "+02:00"}
    assert pd.Timestamp(times[-1]) in aware.index


def test_the_worst_windows_have_their_candles_and_what_each_model_forecast(client, tmp_path):
    report = client.backtest(CANDLES, tmp_path, models=["one", "two"], **OPTIONS)
    table = pq.read_table(tmp_path / "forecasts.parquet").to_pandas()
    errors, forecasts = {}, {}
    for (model, instrument, _), rows in table.groupby(["model", "instrument", "window"]):
        first = rows["timestamp"].iloc[0]
        forecasts[model, instrument, first] = rows
        past = CANDLES[instrument]["close"][:first].iloc[:-1].iloc[-40:]
        miss = (rows["close_q0.5"] - rows["close_actual"]).abs().mean()
        errors[model, instrument, first] = miss / past.diff().abs().mean()
    worst = report["worst_windows"]
    of_first = sorted((error for (model, *_), error in errors.items() if model == "one"), reverse=True)
    assert [each["error"] for each in worst] == pytest.approx(of_first[:3], rel=1e-4)
    for each in worst:
        candles = CANDLES[each["instrument"]].loc[each["timestamps"]]
        assert len(candles) == 40 + 5
        for column in ("open", "high", "low", "close"):
            assert each[column] == pytest.approx(candles[column].tolist(), rel=1e-6)
        for model, quantiles in each["quantiles"].items():
            rows = forecasts[model, each["instrument"], each["timestamps"][-5]]
            for level, values in quantiles.items():
                assert values == pytest.approx(rows[f"close_q{level}"].tolist(), rel=1e-5)


def test_three_instruments_have_a_portfolio_and_two_the_reason(client, tmp_path):
    options = OPTIONS | {"stride": 3}
    candles = CANDLES | {"c": walk(3)}
    report = client.backtest(candles, tmp_path, models=["one", "two"], cost_bps=0, **options)
    view = report["portfolio"]
    assert (view["top"], view["num_times"], view["num_periods"]) == (1, 12, 6)
    assert set(view["models"]) == {"one", "two"}
    one = view["models"]["one"]
    assert one["rank_ic"][-1] == pytest.approx(report["models"]["one"]["scores"]["rank_ic"])
    assert one["return"] == pytest.approx(one["return_before_costs"])
    assert len(one["equity"]) == len(view["equity_times"]) == 7
    last_bar = str(CANDLES["a"].index[-4])  # the last period begins three bars before the last window's
    assert view["equity_times"][-1] == last_bar.replace(" ", "T")
    assert report["models"]["one"]["verdict"][-1].startswith("Top 1 less bottom 1, after costs of 0 bps: ")
    jobs = len(client.jobs)
    dear = client.backtest(candles, tmp_path, models=["one", "two"], cost_bps=100, **options)
    assert len(client.jobs) == jobs, "costs change no forecast"
    assert dear["portfolio"]["models"]["one"]["return"] < one["return"]
    pair = client.backtest(CANDLES, tmp_path / "pair", **options)
    assert pair["portfolio"] is None
    assert pair["no_portfolio"].startswith("a portfolio needs three instruments")


def test_a_backtest_that_was_stopped_before_there_were_portfolios_is_continued():
    times = pd.date_range("2024-01-01", periods=60, freq="D", name="timestamps")
    closes = np.arange(10.0, 70.0)
    frame = pd.DataFrame({"open": closes, "high": closes, "low": closes, "close": closes}, index=times)
    options = BacktestOptions(lookback=40, horizon=5, top=3, cost_bps=2.5)
    digest = "217048d7062afe1858dcb612eea830af087dbc36ab29f960269e9c476193b751"
    assert BacktestPlan(read_candles({"a": frame}).instruments, options).fingerprint == digest


def test_other_options_or_candles_are_not_mixed_with_what_is_there(client, tmp_path):
    client.backtest(CANDLES, tmp_path, **OPTIONS)
    for candles, options in [(CANDLES, OPTIONS | {"seed": 1}), ({"a": walk(3), "b": walk(2)}, OPTIONS)]:
        with pytest.raises(JobError, match="of other candles or options") as refused:
            client.backtest(candles, tmp_path, **options)
        assert refused.value.field == "output"


def test_a_model_that_was_replaced_meanwhile_is_not_mixed_with_the_old_one(client, tmp_path, monkeypatch):
    def stop(done: int, total: int) -> None:
        raise Stopped

    with suppress(Stopped):
        client.backtest(CANDLES, tmp_path, on_progress=stop, **OPTIONS)
    monkeypatch.setattr("kronos_client.testing.STAND_IN", "another")
    with pytest.raises(JobError, match=r"model is another, and the forecasts .* are of stand-in"):
        client.backtest(CANDLES, tmp_path, **OPTIONS)


def test_the_verdict_ends_with_what_must_be_known_of_the_model(client, tmp_path, monkeypatch):
    said = [
        "few paths",
        f"mine comes from synthetic candles: {FOR_TRYING}.",
        *short_name_taken("tiny", "tiny@1"),
    ]
    monkeypatch.setattr("kronos_client.testing.sampling_warnings", lambda job: said)
    report = client.backtest({"a": CANDLES["a"]}, tmp_path, models="tiny", **OPTIONS)
    assert report["models"]["tiny"]["verdict"][-1] == " ".join(said[1:])


def test_windows_that_fail_are_left_out_and_counted(client, tmp_path):
    refusal = JobError(ErrorCode.LIMIT_EXCEEDED, "too large", "series")
    client.refuse_next(refusal, times=5)  # each is tried twice
    assert client.backtest(CANDLES, tmp_path / "first", **OPTIONS)["left_out"]["windows"] == 0
    client.refuse_next(refusal, times=7)
    report = client.backtest(CANDLES, tmp_path, **OPTIONS)
    assert report["num_windows"] == 20
    assert report["left_out"] == {
        "windows": 4, "errors": {"LIMIT_EXCEEDED": {"windows": 4, "message": "too large"}}, "files": {}
    }  # fmt: skip
    again = client.backtest(CANDLES, tmp_path, **OPTIONS)
    assert (again["num_windows"], again["left_out"]["windows"]) == (24, 0)


def test_files_of_a_folder_that_cannot_be_used_are_reported(client, tmp_path):
    CANDLES["a"].to_csv(tmp_path / "a.csv")
    (tmp_path / "notes.csv").write_text("day,mood\n1,good\n")
    report = client.backtest(tmp_path, tmp_path / "out", **OPTIONS)
    assert [one["name"] for one in report["instruments"]] == ["a"]
    ((file, why),) = report["left_out"]["files"].items()
    assert file.endswith("notes.csv")
    assert "column" in why


@pytest.mark.parametrize(
    ("code", "message"),
    [(ErrorCode.MODEL_NOT_ALLOWED, "^"), (ErrorCode.LIMIT_EXCEEDED, "nothing to score: horizon")],
)
def test_an_error_of_every_job_ends_the_run(client, tmp_path, code, message):
    client.refuse_next(JobError(code, "pred_len: not this one", "model"), times=100)
    with pytest.raises(JobError, match=f"{message}.*not this one"):
        client.backtest(CANDLES, tmp_path, **OPTIONS)


def test_models_take_turns_so_that_a_worker_needs_room_for_one(tmp_path):
    options = BacktestOptions(lookback=40, horizon=5, windows=12, models=("one", "two"))
    with closing(BacktestRun(BacktestPlan(read_candles(CANDLES)[0], options), tmp_path)) as run:
        assert [model for (model, _), *_ in run.items()] == [0] * 6 + [1] * 6


def plan(num_bars: int = 300, **options) -> BacktestPlan:
    instruments = read_candles({"a": walk(1, num_bars)}).instruments
    return BacktestPlan(instruments, BacktestOptions(**{"lookback": 40, "horizon": 5} | options))


def begins(plan: BacktestPlan) -> list[int]:
    """The position of each window's first forecast bar."""
    return (plan.windows.start + plan.options.lookback).tolist()


def test_windows_are_spread_evenly_or_counted_back_from_the_end():
    assert begins(plan(windows=3)) == [82, 168, 253]
    assert begins(plan(stride=100)) == [95, 195, 295]
    assert begins(plan(stride=10, windows=2)) == [285, 295]
    assert len(begins(plan())) == 40
    between = plan(stride=1, start=datetime(2024, 3, 1), end=datetime(2024, 3, 10))
    assert begins(between) == list(range(60, 66))


def test_overlapping_futures_are_one_group():
    groups = plan(stride=1, windows=10).times.groups
    assert np.unique(groups, return_counts=True)[1].tolist() == [5, 5]


def plan_of(candles: dict[str, pd.DataFrame], **options) -> BacktestPlan:
    return BacktestPlan(read_candles(candles)[0], BacktestOptions(**{"lookback": 40, "horizon": 5} | options))


def test_nights_and_weekends_do_not_part_overlapping_futures():
    days = pd.bdate_range("2024-01-01", periods=60)
    hours = walk(1, 420).set_index(
        pd.Index([day + pd.Timedelta(hours=9 + h) for day in days for h in range(7)])
    )
    plan = plan_of({"a": hours.rename_axis("timestamps")}, horizon=21, stride=7)  # three days, each day
    assert plan.times.lags == 2
    assert plan.times.num_groups <= len(plan.windows) / 2.5


def test_an_instrument_without_windows_does_not_join_the_others_windows():
    months = walk(2, 30).set_index(pd.date_range("2021-01-31", periods=30, freq="ME", name="timestamps"))
    options = {"horizon": 10, "stride": 10}
    with_it = plan_of({"a": walk(1), "months": months}, **options)
    assert np.array_equal(with_it.times.groups, plan_of({"a": walk(1)}, **options).times.groups)


def test_futures_overlap_those_of_other_instruments():
    dates = pd.date_range("2024-01-01", periods=300, freq="D", name="timestamps")
    late = {f"{start}": walk(start, 300).set_index(dates + pd.Timedelta(days=start)) for start in range(5)}
    assert plan_of({"a": walk(1)}, stride=5).times.lags == 0
    assert plan_of({"a": walk(1)}, stride=2).times.lags == 2
    assert plan_of(late, stride=5).times.lags == 4


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"windows": 0}, "windows"), ({"samples": 1}, "samples"), ({"models": ("a", "a")}, "models"),
        ({"models": ()}, "models"), ({"models": ("drift",)}, "models"), ({"seed": -1}, "seed"),
        ({"seed": 2**63}, "seed"), ({"top": 0}, "top"), ({"cost_bps": -1}, "cost_bps"),
        ({"cost_bps": float("nan")}, "cost_bps"), ({"start": datetime(2024, 3, 1, tzinfo=UTC)}, "start"),
    ],
)  # fmt: skip
def test_options_that_cannot_be_used_are_refused(options, field):
    with pytest.raises(JobError) as refused:
        plan(**options)
    assert (refused.value.code, refused.value.field) == (ErrorCode.BAD_VALUE, field)


@pytest.mark.parametrize(
    "options",
    [
        {"windows": "12"},
        {"cost_bps": "5"},
        {"horizon": 2.5},
        {"horizon": None},
        {"start": "2024-03-01"},
        {"end": pd.NaT},
    ],
)
def test_options_of_another_type_are_refused(options):
    with pytest.raises(JobError) as refused:
        plan(**options)
    assert (refused.value.code, refused.value.field) == (ErrorCode.BAD_TYPE, *options)


def test_bounds_with_a_zone_are_instants_and_others_wall_clock_times():
    zone = ZoneInfo("America/New_York")
    hours = walk(1).set_index(pd.date_range("2024-03-01", periods=300, freq="h", tz=zone, name="timestamps"))

    def first(start: datetime) -> str:
        window = plan_of({"a": hours}, stride=1, start=start).window(0)
        return write_times(window.wall, window.instants, window.is_aware)[40]

    assert (
        first(datetime(2024, 3, 5)) == first(datetime(2024, 3, 5, tzinfo=zone)) == "2024-03-05T00:00:00-05:00"
    )
    assert first(datetime(2024, 3, 5, tzinfo=UTC)) == "2024-03-04T19:00:00-05:00"


def test_one_model_may_be_given_as_text_and_numbers_as_those_of_numpy(client, tmp_path):
    options = OPTIONS | {"windows": np.int64(12)}
    assert set(client.backtest(CANDLES, tmp_path, models="one", **options)["models"]) == {"one"}


def test_the_workers_own_model_may_be_compared_with_itself_by_name(client, tmp_path):
    report = client.backtest(CANDLES, tmp_path, models=[None, "stand-in"], **OPTIONS)
    assert set(report["models"]) == {"stand-in (workers' own)", "stand-in"}


def test_too_few_bars_are_refused_with_the_number_that_is_needed():
    with pytest.raises(JobError, match=r"a lookback of 40 and a horizon of 5 need 45 bars, and .* has 44"):
        plan(num_bars=44)
    assert len(plan(num_bars=45).windows) == 1


@pytest.mark.parametrize("name", ["BTC/USDT", "../up", ".hidden", "BRK.B", "", "é" * 300])
def test_a_dataframe_may_have_any_name(name, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    instruments = read_candles({"b": walk(1), name: walk(2)}).instruments
    assert [one.name for one in instruments] == sorted([name, "b"])
    assert list(tmp_path.iterdir()) == []


def test_no_dataframe_is_written_at_the_path_that_its_name_is(tmp_path):
    (tmp_path / "mine.parquet").write_text("kept")
    read_candles({str(tmp_path / "mine"): walk(1)})
    assert (tmp_path / "mine.parquet").read_text() == "kept"


def test_a_dataframe_that_cannot_be_used_is_not_passed_over():
    with pytest.raises(JobError, match=r"^INVALID_INPUT: the frame 'BTC/USD' has no usable row"):
        read_candles({"a": walk(1), "BTC/USD": walk(2) * np.nan})


def test_the_hour_that_repeats_as_clocks_go_back_is_forecast_too(client, tmp_path):
    hours = walk(1).set_index(
        pd.date_range("2024-10-30", periods=300, freq="h", tz="America/New_York", name="timestamps")
    )
    report = client.backtest({"a": hours}, tmp_path, **OPTIONS | {"windows": 200})
    assert (report["num_windows"], report["left_out"]["windows"]) == (200, 0)
    series = next(iter(client.jobs.values()))["series"][0]
    assert series["timestamps"][0].endswith("-04:00")
    (described,) = report["instruments"]
    assert described["first"] == "2024-10-30T00:00:00-04:00"
    assert described["last"].endswith("-05:00")
    for worst in report["worst_windows"]:
        assert {stamp[-6:] for stamp in worst["timestamps"]} <= {"-04:00", "-05:00"}


AUTO = {"horizon": 5, "windows": 12, "samples": 8}


@pytest.fixture
def announcing(client):
    """Workers whose model reads 40 bars by itself."""
    counts = {"revision": None, "state": "ready", "jobs": 0, "slots": 1, "running": 0, "waiting": 0}
    own = {"id": "stand-in", **counts, "max_context": 64, "lookback": 40}
    client.live_workers = [fake_worker(models=[own])]
    return client


@pytest.mark.parametrize("fake", [FakeForecastClient, FakeAsyncForecastClient])
def test_a_backtest_waits_for_a_worker_that_is_not_ready_and_says_so(
    fake, announcing, tmp_path, monkeypatch, caplog
):
    states = [[], [fake_worker(state="loading")], [fake_worker(state="loading")], announcing.live_workers]
    monkeypatch.setattr(
        "kronos_client.testing._Memory.workers", lambda _: states.pop(0) if states[1:] else states[0]
    )
    monkeypatch.setattr("kronos_client.backtesting.run.WORKER_POLL_S", 0)
    report = fake().backtest(CANDLES, tmp_path, **AUTO)
    report = asyncio.run(report) if asyncio.iscoroutine(report) else report
    assert report["asked"]["lookback"] == 40
    none, loading = [record.message for record in caplog.records]
    assert none.startswith("No worker serves the queue cpu")
    assert loading.startswith("Every worker of the queue cpu is still loading its model")


@pytest.mark.parametrize("chosen", [{}, {"lookback": 40}])
def test_instruments_too_short_for_the_lookback_are_left_out_by_name(announcing, tmp_path, chosen):
    report = announcing.backtest(CANDLES | {"short": walk(3, 44)}, tmp_path, **AUTO | chosen)
    assert [one["name"] for one in report["instruments"]] == ["a", "b"]
    assert report["left_out"]["files"] == {"short": "it has 44 bars, and a window takes 45"}
    assert (report["asked"]["lookback"], report["remarks"]) == (40, [])


def test_the_verdict_says_which_instruments_have_one_value_a_bar(client, tmp_path):
    closes = CANDLES["a"]["close"]
    plain = closes.to_frame().assign(open=closes, high=closes, low=closes)
    for name, bars, expected in (
        ("series", {"a": closes, "b": CANDLES["b"]}, "One value a bar: 1 of 2 instruments. Only the close"),
        ("frame", plain, "One value a bar: 1 of 1 instrument. Only the close"),
        ("candles", CANDLES, None),
    ):
        report = client.backtest(bars, tmp_path / name, **OPTIONS)
        said = [line for line in report["models"]["stand-in"]["verdict"] if "One value" in line]
        assert [line.startswith(expected) for line in said] == ([True] if expected else [])


def test_the_lookback_is_shortened_if_fewer_than_half_remain_and_nobody_chose_it(announcing, tmp_path):
    bars = {"long": walk(1), "middle": walk(2, 35), "also": walk(3, 37), "short": walk(4, 9)}
    report = announcing.backtest(bars, tmp_path / "auto", **AUTO)
    assert report["asked"]["lookback"] == 16 == (37 - 5) // 2
    assert list(report["left_out"]["files"]) == ["short"]
    (remark,) = report["remarks"]
    assert remark.startswith("the lookback is 16 bars instead of 40, for which fewer than half")
    assert announcing.backtest(bars, tmp_path / "auto", **AUTO)["asked"]["lookback"] == 16, "as it began"
    chosen = announcing.backtest(bars, tmp_path / "chosen", **AUTO, lookback=40)
    assert [one["name"] for one in chosen["instruments"]] == ["long"]


def test_the_lookback_is_the_shortest_that_the_models_announce():
    counts = {"jobs": 0, "slots": 8, "running": 0, "waiting": 0}
    model = ModelStatus(id="a", revision=None, state="ready", max_context=512, **counts)
    trained = model.model_copy(update={"id": "b", "lookback": 90})
    worker = fake_worker(models=(model.model_dump(), trained.model_dump()), model=info("a"))
    assert find_lookback([worker], [None], 24) == 488
    assert find_lookback([worker], ["a", "b"], 24) == 90
    registered = fake_worker(models=(trained.model_dump() | {"id": "mine@3"},), model=info("mine"))
    assert find_lookback([registered], [None], 24) == 90
    with pytest.raises(JobError, match="no live worker holds the model c"):
        find_lookback([worker], ["c"], 24)
    with pytest.raises(JobError, match=": wait until the one that is loading is ready, or give "):
        find_lookback([fake_worker(state="loading")], [None], 24)
    with pytest.raises(JobError, match=r"; did you mean kronos-tiny\?"):
        find_lookback([], ["kronos-tny"], 24)
    published = fake_worker(models=(trained.model_dump() | {"id": "NeoQuasar/Kronos-small"},))
    assert find_lookback([published], ["small"], 24) == 90
    assert find_lookback([], ["tiny"], 24) == find_lookback([], ["kronos-tiny"], 24)


def test_as_many_jobs_are_in_flight_as_fill_the_workers_twice():
    instruments = read_candles({"a": walk(1)}).instruments
    plan = BacktestPlan(instruments, BacktestOptions(lookback=40, horizon=5, samples=30))

    def in_flight(*slots: int) -> int:
        workers = [fake_worker(slots=number) for number in slots]
        with TemporaryDirectory() as folder, closing(BacktestRun(plan, Path(folder), workers)) as run:
            return run.sending["max_in_flight"]

    assert in_flight() == 2
    assert in_flight(64, 64, 64) == 6
    assert in_flight(512, 512) == 18


def info(name: str) -> dict:
    return {"id": name, "revision": None, "tokenizer_id": name, "tokenizer_revision": None}
