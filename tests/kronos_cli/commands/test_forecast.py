"""``kronos forecast``: the jobs it sends, the files it writes, and its output. A fake client answers."""

import io
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from kronos_cli.commands import forecast as command
from kronos_cli.main import cli
from kronos_cli.settings import CliSettings, get_settings
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.core.many import ForecastOutcome
from kronos_client.registry.model_registry import ModelRegistry
from kronos_client.testing import FakeForecastClient, fake_worker
from kronos_model.bars.synthetic import candles
from kronos_model.checkpoints.names import BUNDLED_FOLDER
from tests.kronos_model.bars.files.candle_files import FOLDER
from tests.worker.inference.forecasts import result


class PlayedClient:
    """Answers each file by its number of bars, and records the requests."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.options: dict[str, Any] = {}
        self.errors: dict[int, BaseException] = {}
        self.is_closed = False
        self.model = {"id": "own", "revision": "1", "tokenizer_id": "t", "tokenizer_revision": "1"}
        self.live_workers: list[Any] = []

    def workers(self) -> list[Any]:
        if not self.live_workers:
            raise JobError(ErrorCode.BROKER_UNREACHABLE, "Redis is away")
        return self.live_workers

    def __call__(self, **_: Any) -> "PlayedClient":
        return self

    def __enter__(self) -> "PlayedClient":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def forecast_many(self, items: Any, **options: Any) -> Iterator[ForecastOutcome]:
        self.options = options
        try:
            for index, (key, frame, _) in enumerate(items):
                self.asked.append(len(frame))
                error = self.errors.get(len(frame))
                if error is not None and not isinstance(error, JobError):
                    raise error
                done = None if error else result(warnings=["a warning"], model=self.model)
                yield ForecastOutcome(index, key, f"job-{index}", done, error)
        finally:
            self.is_closed = True


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> PlayedClient:
    played = PlayedClient()
    monkeypatch.setattr(command, "ForecastClient", played)
    return played


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Three files of 20, 21 and 22 bars, in the folder ``in`` of the working folder."""
    monkeypatch.chdir(tmp_path)
    Path("in").mkdir()
    paths = [Path("in") / f"{name}.csv" for name in "abc"]
    for bars, path in enumerate(paths, start=20):
        pd.DataFrame(candles(seed=bars, bars=bars).as_dict()).to_csv(path, index=False)
    return paths


def forecast(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["forecast", *arguments])


def summary(outcome: Result) -> dict[str, Any]:
    return json.loads(outcome.stdout)  # type: ignore[no-any-return]


def test_the_first_help_lists_at_most_24_options_and_the_others_have_headings() -> None:
    sections = re.split(r"^(\w[\w ]+):\n", forecast("--help").output, flags=re.MULTILINE)
    listed = {
        heading: re.findall(r"^  (?:-h, )?--([\w-]+)", text, re.MULTILINE)
        for heading, text in zip(sections[1::2], sections[2::2], strict=True)
    }
    listed.pop("Usage", None)
    assert list(listed) == ["Options", "Reading the files", "Sending the jobs"]
    assert len(listed["Options"]) <= 24
    options = [option for parameter in command.forecast.params for option in parameter.opts if "--" in option]
    assert sorted(f"--{name}" for names in listed.values() for name in names) == sorted([*options, "--help"])


def test_every_file_is_forecast_once(played: PlayedClient, files: list[Path]) -> None:
    outcome = forecast("in", "--output", "out", "--in-flight", "5", "--pred-len", "2", "--timeout", "9")
    assert outcome.exit_code == 0, outcome.output
    assert outcome.stdout == "3 files: 3 forecasts. out\n"
    assert outcome.stderr.count("a warning") == 1
    assert (
        played.options.items() >= {"max_in_flight": 5, "pred_len": 2, "timeout_s": 9, "forget": True}.items()
    )
    assert pd.read_csv("out/b.csv")["close"].tolist() == [10.0, 11.0]
    again = forecast("in", "--output", "out", "--pred-len", "2")
    assert again.stdout == "3 files: 0 forecasts, 3 unchanged. out\n"
    assert played.asked == [20, 21, 22]


def test_another_version_of_the_workers_own_model_repeats_a_forecast(
    played: PlayedClient, files: list[Path]
) -> None:
    assert "3 forecasts" in forecast("in", "--output", "out").stdout
    for revision, said in (("1", "3 unchanged"), ("2", "3 forecasts"), ("2", "3 unchanged")):
        played.model = played.model | {"revision": revision}
        played.live_workers = [fake_worker(model=played.model)]
        assert said in forecast("in", "--output", "out").stdout
    played.live_workers = []
    assert "3 unchanged" in forecast("in", "--output", "out").stdout, "nobody says what a job would get"


def test_another_version_that_a_name_means_repeats_a_forecast(
    played: PlayedClient, files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = ModelRegistry(tmp_path / "models")
    settings = CliSettings(model_folder=tmp_path / "models")
    monkeypatch.setattr(command, "get_settings", lambda: settings)
    for version in "12":
        registry.register(
            BUNDLED_FOLDER / "kronos-tiny",
            "mine",
            job_id=version,
            fingerprint=version,
            metadata={"max_context": 64},
        )
        played.model = played.model | {"id": "mine", "revision": version}
        assert "3 forecasts" in forecast("in", "--output", "out.csv", "--model", "mine").stdout
        assert "3 unchanged" in forecast("in", "--output", "out.csv", "--model", "mine").stdout


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        (["--fresh"], [20, 21, 22]),
        (["--pred-len", "3"], [20, 21, 22]),
        (["--seed", "1"], [20, 21, 22]),
        (["--model", "other"], [20, 21, 22]),
        (["--lookback", "21"], [20, 21, 21]),
        (["--format", "json"], [20, 21, 22]),
        (["--calendar", "24/7"], [20, 21, 22]),
        (["--plot"], [20, 21, 22]),
        (["--priority", "high", "--device", "cuda", "--deadline", "5"], []),
    ],
)
def test_changed_options_repeat_a_forecast(
    played: PlayedClient, files: list[Path], arguments: list[str], asked: list[int]
) -> None:
    assert forecast("in", "--output", "out").exit_code == 0
    played.asked.clear()
    assert forecast("in", "--output", "out", *arguments).exit_code == 0
    assert played.asked == asked


def test_what_is_recognised_is_explained_without_a_client(files: list[Path]) -> None:
    shutil.copy(FOLDER / "nasdaq.csv", "in/n.csv")
    Path("in/bad.csv").write_text("observation_date,A,B\n2024-06-18,1,2\n")
    outcome = forecast("in/n.csv", "in/bad.csv", "--explain")
    assert outcome.exit_code == 1
    assert outcome.stdout.splitlines()[:3] == [
        "in/n.csv",
        "  form: Nasdaq (as in nasdaq.com/market-activity, historical data, 2026-11), by its titles",
        "  timestamps: column Date",
    ]
    assert "several columns that may hold the values, a, b" in outcome.stderr
    assert "--columns value=TITLE" in outcome.stderr


def test_a_flat_file_of_many_tickers_is_a_job_for_each(played: PlayedClient, files: list[Path]) -> None:
    lines = [
        f"T{ticker},1,1.0,1.1,1.2,0.9,{1718668800 + 60 * bar}000000000,3"
        for bar in range(30)
        for ticker in range(300)
    ]
    header = "ticker,volume,open,close,high,low,window_start,transactions"
    Path("in/flat.csv").write_text("\n".join([header, *lines, ""]))
    outcome = forecast("in", "--output", "out", "--pred-len", "2")
    assert outcome.exit_code == 0, outcome.output
    assert outcome.stdout == "303 files: 303 forecasts. out\n"
    assert played.asked == [20, 21, 22, *[30] * 300]
    assert Path("out/flat/T299.csv").exists()
    Path("in/flat.csv").write_text("\n".join([header, *lines[:300], ""]))
    outcome = forecast("in/flat.csv", "--output", "other")
    assert "1 file: 0 forecasts, 1 failed" in outcome.stdout
    assert "has one bar of each of its 300 instruments" in outcome.stderr


def test_changed_candles_repeat_a_forecast(played: PlayedClient, files: list[Path]) -> None:
    forecast("in", "--output", "all.parquet")
    lines = files[1].read_text().splitlines()
    files[1].write_text("\n".join(lines[:-1]))
    files[0].write_text(files[0].read_text().replace("open", "OPEN"))  # which changes no candle
    played.asked.clear()
    assert forecast("in", "--output", "all.parquet").exit_code == 0
    assert played.asked == [20]  # bars of b, which are one fewer now
    assert pd.read_parquet("all.parquet")["series"].unique().tolist() == ["a", "b", "c"]


def test_a_file_that_fails_stops_no_other_and_is_printed_with_its_code(
    played: PlayedClient, files: list[Path]
) -> None:
    files[0].write_text("date,open,high,close\n2024-06-18,1,1,1\n")
    played.errors[21] = JobError(ErrorCode.NOT_FINITE, "series 0 has NaN", "series.0.close")
    outcome = forecast("in", "--output", "out")
    assert outcome.exit_code == 1
    assert "INVALID_INPUT: in/a.csv has no column low" in outcome.stderr
    assert "NOT_FINITE: in/b.csv: series 0 has NaN" in outcome.stderr
    assert outcome.stdout == "3 files: 1 forecast, 2 failed. out\n"
    assert sorted(path.name for path in Path("out").glob("*.csv")) == ["c.csv"]
    found = summary(forecast("in", "--output", "out", "--json"))
    assert [(entry["file"], entry["code"], entry["field"]) for entry in found["failed"]] == [
        ("in/a.csv", "INVALID_INPUT", "low"),
        ("in/b.csv", "NOT_FINITE", "series.0.close"),
    ]


def test_paths_are_as_many_as_a_limit_below_the_default_allows(
    files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes: list[FakeForecastClient] = []

    def fake(settings: CliSettings) -> FakeForecastClient:
        fakes.append(FakeForecastClient(settings=settings))
        return fakes[-1]

    monkeypatch.setattr(command, "ForecastClient", fake)
    monkeypatch.setenv("KRONOS_MAX_SAMPLE_COUNT", "10")
    arguments = ["in/a.csv", "--output", "out", "--format", "json", "--pred-len", "2"]
    assert "Warning: 10 paths are drawn for each series, not 100: KRONOS" in forecast(*arguments).stderr
    assert "10 paths are drawn" in " ".join(json.loads(Path("out/a.json").read_text())["warnings"])
    assert "are drawn" not in forecast(*arguments, "--samples", "9").stderr
    monkeypatch.setenv("KRONOS_MAX_SAMPLE_COUNT", "100")
    get_settings.cache_clear()
    assert forecast(*arguments).stdout == "1 file: 1 forecast. out\n"
    drawn = [job["sampling"]["sample_count"] for fake in fakes for job in fake.jobs.values()]
    assert drawn == [10, 9, 100]


def test_the_summarys_keys_are_stable(played: PlayedClient, files: list[Path]) -> None:
    assert summary(forecast("in/a.csv", "--output", "out", "--json")) == {
        "output": "out",
        "files": 1,
        "forecast": 1,
        "unchanged": 0,
        "failed": [],
        "left": 0,
        "interrupted": False,
        "warnings": ["a warning"],
        "answers": [],
        "error": None,
    }


def test_ctrl_c_keeps_forecasts_and_the_next_run_continues(played: PlayedClient, files: list[Path]) -> None:
    played.errors[21] = KeyboardInterrupt()
    outcome = forecast("in", "--output", "all.csv", "--json")
    assert outcome.exit_code == 130
    assert {name: summary(outcome)[name] for name in ("forecast", "left", "interrupted")} == {
        "forecast": 1,
        "left": 2,
        "interrupted": True,
    }
    assert pd.read_csv("all.csv")["series"].unique().tolist() == ["a"]
    assert played.is_closed
    played.errors.clear()
    played.asked.clear()
    assert forecast("in", "--output", "all.csv").exit_code == 0
    assert played.asked == [21, 22]
    assert pd.read_csv("all.csv")["series"].unique().tolist() == ["a", "b", "c"]


@pytest.mark.parametrize("name", ["all.csv", "all.parquet"])
def test_the_table_of_an_interrupted_run_has_only_files_that_it_reached(
    played: PlayedClient, files: list[Path], name: str
) -> None:
    assert forecast("in", "--output", name, "--quantiles", "").exit_code == 0
    assert forecast("in/a.csv", "--output", name).exit_code == 0
    played.errors[22] = KeyboardInterrupt()
    outcome = forecast("in", "--output", name)
    assert outcome.exit_code == 130, outcome.output
    table = pd.read_csv(name) if name.endswith("csv") else pd.read_parquet(name)
    # a is unchanged, b was forecast now; c is of the first run, made from other options.
    assert table["series"].unique().tolist() == ["a", "b"]


def test_a_users_file_is_replaced_only_with_overwrite(played: PlayedClient, files: list[Path]) -> None:
    theirs = files[1].read_text()
    outcome = forecast("in/a.csv", "--output", "in/b.csv")
    assert (outcome.exit_code, played.asked) == (2, [])
    assert "in/b.csv exists" in outcome.stderr
    assert files[1].read_text() == theirs
    Path("out").mkdir()
    Path("out/b.csv").write_text(theirs)
    outcome = forecast("in", "--output", "out")
    assert (outcome.exit_code, played.asked) == (2, [])
    assert "--overwrite" in outcome.stderr
    assert forecast("in", "--output", "out", "--overwrite").exit_code == 0
    assert Path("out/b.csv").read_text() != theirs
    assert forecast("in", "--output", "out", "--fresh").exit_code == 0  # ours from now on


def test_an_error_that_every_file_would_have_ends_the_run(played: PlayedClient, files: list[Path]) -> None:
    played.errors[21] = JobError(ErrorCode.BROKER_UNREACHABLE, "Redis does not answer")
    outcome = forecast("in", "--output", "out")
    assert outcome.exit_code == 1
    assert "1 forecast" in outcome.stdout
    assert "Error: BROKER_UNREACHABLE: Redis does not answer" in outcome.stderr
    assert played.asked == [20, 21]
    assert played.is_closed


@pytest.mark.parametrize("code", ["MODEL_NOT_ALLOWED", "CHECKPOINT_MISSING", "TIMEZONE_UNKNOWN"])
@pytest.mark.parametrize("bars", [20, 21])
def test_as_json_the_summary_has_the_error_that_ended_the_run(
    played: PlayedClient, files: list[Path], code: str, bars: int
) -> None:
    played.errors[bars] = JobError(code, "no")
    outcome = forecast("in", "--output", "out", "--json", "--model", "mistyped")
    assert outcome.exit_code == 1
    found = summary(outcome)
    assert found["error"] == {"code": code, "message": "no"}
    assert (found["forecast"], found["left"]) == (bars - 20, 23 - bars)
    assert played.asked == list(range(20, bars + 1))
    assert f"Error: {code}: no" in outcome.stderr


def test_as_json_a_usage_error_is_an_object(played: PlayedClient, files: list[Path]) -> None:
    for arguments in (["no-such.csv", "--json"], ["--json"], ["in", "--no-such-option", "--json"]):
        outcome = forecast(*arguments)
        assert outcome.exit_code == 2
        assert summary(outcome)["error"]["code"] == "USAGE"
        assert summary(outcome)["error"]["message"] in outcome.stderr


def test_charts_are_drawn_next_to_the_forecasts(played: PlayedClient, files: list[Path]) -> None:
    forecast("in/a.csv", "--output", "out", "--plot")
    forecast("in/a.csv", "--output", "all.json", "--plot")
    assert Path("out/a.png").read_bytes().startswith(b"\x89PNG")
    assert Path("all/a.png").exists()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["no-such.csv"], "no-such.csv does not exist"),
        (["in/a.csv", "--output", "in"], "lies where the forecasts go"),
        (["in", "--quantiles", "0.1,1"], "quantiles lie between 0 and 1"),
        (["in", "--quantiles", "a"], "not a list of numbers"),
        (["in", "--device", "gpu"], "'gpu' is none of auto, cpu, cuda"),
        (["in", "--output", "x.csv", "--format", "csv"], "--format is for a folder"),
        (["in", "--output", "in/a.txt"], "a file but not a table"),
        (["in", "--output", "in/folder.csv"], "with the name of a table"),
        (["in", "--output", "x.xlsx"], "a table ends in .parquet, .csv (which Excel opens) or .json"),
        ([], "Missing argument"),
    ],
)
def test_invalid_arguments_are_one_line_and_status_2(
    played: PlayedClient, files: list[Path], arguments: list[str], reason: str
) -> None:
    Path("in/a.txt").touch()
    Path("in/folder.csv").mkdir()
    outcome = forecast(*arguments)
    assert outcome.exit_code == 2
    assert reason in outcome.stderr
    assert played.asked == []


def test_a_chart_that_cannot_be_written_is_one_line(played: PlayedClient, files: list[Path]) -> None:
    Path("out/a.png").mkdir(parents=True)
    outcome = forecast("in/a.csv", "--output", "out", "--plot")
    assert outcome.exit_code == 1
    assert "Error: " in outcome.stderr
    assert isinstance(outcome.exception, SystemExit)


def test_options_say_how_files_are_read(played: PlayedClient, files: list[Path]) -> None:
    files[0].write_text("Day,Open,High,Low,Last\n5/6/2024,1,1,1,1\n6/6/2024,1,1,1,\n7/6/2024,1,1,1,1\n")
    named = ["--columns", "timestamps=Day", "--columns", "close=Last"]
    outcome = forecast("in/a.csv", *named)
    assert "the day or the month first: give the date format, %d/%m/%Y or %m/%d/%Y (--date-format)" in (
        outcome.stderr
    )
    named += ["--date-format", "%d/%m/%Y"]
    outcome = forecast("in/a.csv", *named)
    assert "INVALID_INPUT: in/a.csv, line 3, column Last: there is nothing" in outcome.stderr
    assert outcome.stderr.endswith("such rows the close before, --missing drop leaves them out\n")
    outcome = forecast("in/a.csv", *named, "--drop-bad-rows")
    assert (outcome.exit_code, played.asked) == (0, [2])
    assert "Warning: rows left out: 1 not a number; in/a.csv, line 3, column Last" in outcome.stderr
    outcome = forecast("in/a.csv")
    assert "has no column close" not in outcome.stderr
    assert "or name the column: --columns timestamps=TITLE" in outcome.stderr
    assert "--columns: 'closing=x' names no column" in forecast("in", "--columns", "closing=x").stderr


def test_each_instrument_of_a_file_is_forecast(played: PlayedClient, files: list[Path]) -> None:
    tables = [pd.read_csv(path).assign(id=name) for path, name in zip(files, ("../A", "b", "B"), strict=True)]
    pd.concat(tables).to_csv("market.csv", index=False)
    outcome = forecast("market.csv", "in/a.csv", "--id-column", "id", "--output", "out")
    assert played.asked == [20, 22, 21]
    assert {path.name for path in Path("out/market").iterdir()} == {"_._A.csv", "B.csv", "b-2.csv"}
    assert "INVALID_INPUT: in/a.csv has no column 'id' for instrument; it has timestamps" in outcome.stderr
    assert outcome.stdout == "4 files: 3 forecasts, 1 failed. out\n"


def test_warnings_name_their_files(played: PlayedClient, files: list[Path]) -> None:
    outcome = forecast("in", "--output", "out")
    assert "Warning: in/a.csv, in/b.csv, in/c.csv: a warning\n" in outcome.stderr


def test_errors_of_jobs_use_the_words_of_the_command_line(played: PlayedClient, files: list[Path]) -> None:
    played.errors[20] = JobError(
        "MIXED_TIMEZONES", "series.0.timestamps, row 3: '2024' is odd", "series.0.timestamps", {"row": 3}
    )
    played.errors[21] = JobError(
        "CANNOT_INFER_TIMESTAMPS", "no rule: give them, or a longer lookback", "series.0"
    )
    played.errors[22] = JobError("LIMIT_EXCEEDED", "sampling.sample_count: 300 is more than 256", "sampling")
    assert forecast("in", "--output", "out").stderr.splitlines() == [
        "MIXED_TIMEZONES: in/a.csv: times, line 5: '2024' is odd",
        "CANNOT_INFER_TIMESTAMPS: in/b.csv: no rule: use a longer file, or a longer --lookback",
        "LIMIT_EXCEEDED: in/c.csv: --samples: 300 is more than 256",
    ]


def test_without_a_terminal_there_is_no_bar_and_no_colour(played: PlayedClient, files: list[Path]) -> None:
    outcome = forecast("in", "--output", "out")
    assert "\x1b" not in outcome.output
    assert "━" not in outcome.output
    assert not Console(file=io.StringIO()).is_terminal


def test_chances_and_statistics_are_printed_and_written(files: list[Path], monkeypatch) -> None:
    fake = FakeForecastClient()
    monkeypatch.setattr(command, "ForecastClient", lambda **_: fake)
    monkeypatch.setattr(fake, "close", lambda: None)  # of one run: another follows
    arguments = ["in/a.csv", "--output", "out.csv", "--pred-len", "3", "--seed", "1", "--samples", "30"]
    arguments += ["--event", "close>last at end", "--event", "low<=0.01 by 2", "--statistics"]
    outcome = forecast(*arguments)
    table = pd.read_csv("out.csv")
    share = table["close>last at end"].unique().item()
    lines = outcome.stdout.splitlines()
    assert outcome.exit_code == 0, outcome.output
    assert lines[0].startswith(f"a: close>last at end: {100 * share:.1f} % ± ")
    assert lines[1] == "a: low<=0.01 by 2: fewer than 1 in 30 paths (95 %: at most 11.4 %)"
    assert [line.split(":")[1] for line in lines[2:5]] == [
        " total return",
        " realised volatility",
        " max drawdown",
    ]
    assert table["low<=0.01 by 2"].tolist() == [0.0] * 3
    (answer,) = summary(forecast(*arguments, "--fresh", "--json"))["answers"]
    assert (answer["series"], answer["events"][0]["probability"]) == ("a", pytest.approx(share))
    assert (
        "'close>last' is no event: write an event such as" in forecast("in", "--event", "close>last").stderr
    )
    late = forecast("in", "--pred-len", "2", "--event", "close>last at 3")
    assert "--event asks for bar 3, but 2 are forecast: ask for more with --pred-len" in late.stderr


def test_a_long_file_becomes_a_long_table_as_of_predict_df(files: list[Path], monkeypatch) -> None:
    fake = FakeForecastClient()
    monkeypatch.setattr(command, "ForecastClient", lambda **_: fake)
    monkeypatch.setattr(fake, "close", lambda: None)  # of one run: another follows
    parts = [pd.DataFrame(candles(seed=i, bars=60).as_dict()).assign(unique_id=f"I/{i}") for i in range(3)]
    df = pd.concat(parts).rename(columns={"timestamps": "ds"})
    df.to_csv("in/long.csv", index=False)
    long = ["in/long.csv", "--id-column", "unique_id", "--target", "close", "--target", "high"]
    made = ["--pred-len", "4", "--seed", "1", "--output"]
    assert forecast(*long, *made, "out.csv").exit_code == 0
    assert forecast(*long, *made, "out.parquet").exit_code == 0
    expected = fake.predict_df(df, pred_len=4, seed=1, sample_count=100, target=["close", "high"])
    pd.testing.assert_frame_equal(pd.read_csv("out.csv"), expected)
    pd.testing.assert_frame_equal(pd.read_parquet("out.parquet"), expected)
    assert "ends in .parquet" in forecast(*long, "--output", "folder").stderr.replace("must end", "ends")
    df.to_csv("in/other.csv", index=False)
    twice = forecast("in/other.csv", *long, *made, "both.csv")
    assert "I/0 is in 2 files" in twice.stderr


def test_a_file_that_names_a_zone_is_forecast_on_its_clock(files: list[Path], monkeypatch) -> None:
    fake = FakeForecastClient()
    monkeypatch.setattr(command, "ForecastClient", lambda **_: fake)
    monkeypatch.setattr(fake, "close", lambda: None)  # of one run: another follows
    times = pd.date_range("2013-03-05", "2013-03-09 23:00", freq="h", tz="America/New_York", name="date")
    bars = pd.DataFrame(candles(seed=1, bars=len(times)).columns, index=times)
    bars.to_parquet("in/a.parquet")
    (bars := bars.set_index(times.strftime("%Y%m%d %H:%M:%S US/Eastern"))).to_csv("in/a.csv")
    bars.set_index(pd.Index([time.isoformat() for time in times])).to_csv("in/b.csv", index_label="date")
    later = pd.date_range("2013-03-10", periods=4, freq="h", tz="America/New_York")
    told = {}
    for name in ("a.parquet", "a.csv", "b.csv"):
        outcome = forecast(f"in/{name}", "--output", "out", "--format", "json", "--pred-len", "4")
        assert outcome.exit_code == 0, outcome.output
        record = json.loads(Path("out", name.partition(".")[0] + ".json").read_text())
        told[name] = record["timezone"], record["timestamps"] == [time.isoformat() for time in later]
    assert told == {
        "a.parquet": ("America/New_York", True),
        "a.csv": ("US/Eastern", True),
        "b.csv": (None, False),
    }
    assert "America/New_York has another one: give --timezone, if" in outcome.stderr
    outcome = forecast("in/b.csv", "--output", "out", "--pred-len", "4", "--timezone", "America/New_York")
    assert pd.read_csv("out/b.csv")["timestamp"].tolist() == [time.isoformat() for time in later]
    assert "--timezone" not in outcome.stderr


@pytest.mark.parametrize(
    ("how", "text"), [("ffill", "They have the close before them"), ("drop", "left out")]
)
def test_blank_prices_are_filled_or_dropped(files: list[Path], monkeypatch, how: str, text: str) -> None:
    fake = FakeForecastClient()
    monkeypatch.setattr(command, "ForecastClient", lambda **_: fake)
    monkeypatch.setattr(fake, "close", lambda: None)  # of one run: another follows
    bars = pd.DataFrame(candles(seed=1, bars=60).as_dict())
    bars.loc[[10, 11], ["open", "high", "low", "close"]] = float("nan")
    bars.loc[[10, 11], "volume"] = 0
    bars.drop(columns="amount").to_csv("in/a.csv", index=False)
    refused = forecast("in/a.csv", "--output", "out.csv")
    assert refused.exit_code == 1
    assert "line 12, column open: there is nothing where a number is needed" in refused.stderr
    outcome = forecast("in/a.csv", "--output", "out.csv", "--missing", how)
    assert outcome.exit_code == 0, outcome.output
    assert "Without prices: 2 of 60 bars" in outcome.stderr
    assert text in outcome.stderr
    Path("in/b.csv").write_text(Path("in/a.csv").read_text().replace(",,,,", ",x,,,", 1))
    assert "there is 'x'" in forecast("in/b.csv", "--output", "b.csv", "--missing", how).stderr
