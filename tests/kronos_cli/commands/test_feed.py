"""``kronos feed`` as users call it, with the fake's forecasts for a worker."""

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kronos_cli.commands.feed import create, feed
from kronos_cli.main import cli
from kronos_client.client import ForecastClient
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.manifest import Manifest
from kronos_client.core.options import FeedOptions
from kronos_client.feeds.feed import Feed
from kronos_client.feeds.store import FeedStore
from kronos_client.testing import fake_worker
from kronos_model.bars.synthetic import candles
from tests.kronos_client.feeds.test_forecasts import HandWorker

UP = "close>last at end"


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(cli, ["feed", *map(str, words)], prog_name="kronos")


def write(path: Path, num_bars: int, seed: int = 1) -> Path:
    columns = candles(seed=seed, bars=100).as_dict()
    rows = zip(*([*columns[name]][:num_bars] for name in columns), strict=True)
    path.write_text("".join(f"{','.join(map(str, row))}\n" for row in [columns, *rows]))
    return path


@pytest.fixture
def folder(tmp_path, redis):
    write(tmp_path / "AAA.csv", 60)
    write(tmp_path / "BBB.csv", 60, seed=2)
    assert run("create", "u", "--pred-len", 3, "--samples", 8, "--event", UP).exit_code == 0
    return tmp_path


def test_files_become_a_table_of_forecasts(folder, redis, redis_server, monkeypatch):
    assert "BBB.csv: 60 new (1 series)" in run("append", "u", folder).output
    HandWorker(redis, redis_server.url).run()
    rows = json.loads(run("latest", "u", "--json").output)
    assert [row["id"] for row in rows] == ["AAA", "BBB"]
    assert all(row["close_q0.1"] < row["close_q0.9"] and row["error"] is None for row in rows)
    table = [line.rstrip() for line in run("latest", "u", "--rank", UP).output.splitlines()]
    assert max(map(len, table)) <= 80
    assert [text for line in table[1:4] for text in line.split()] == [
        *("close>", "last", "close", "80", "%", "last"),
        *("series", "last", "bar", "age", "close", "bar", "+3", "range", "at", "end"),
    ]
    shown = {cells[0]: cells for cells in map(str.split, table[5:]) if cells}
    last = {title: values[59] for title, values in candles(seed=1, bars=100).as_dict().items()}
    assert shown["AAA"][1:3] == f"{datetime.fromisoformat(last['timestamps']):%m-%d %H:%M}".split()
    prices = [*shown["AAA"][5:7], *shown["AAA"][7].split("–")]
    assert float(prices[0]) == pytest.approx(last["close"], rel=1e-4)
    assert len({len(price.partition(".")[2]) for price in prices}) == 1
    assert shown.keys() == {"AAA", "BBB"}
    assert run("latest", "u", "--csv").output.count("\n") == 3
    assert "Nothing is scored yet" in run("scores", "u").output
    write(folder / "AAA.csv", 62)
    run("append", "u", folder)
    HandWorker(redis, redis_server.url).run()
    assert len(json.loads(run("scores", "u", "--by", "horizon", "--json").output)) == 3
    assert "AAA" in run("scores", "u").output
    rows = [{"id": f"s{number}", "num_bars": 1} for number in range(21)]
    monkeypatch.setattr(Feed, "score_rows", lambda *_, **__: rows)
    assert all(f" {row['id']} " in run("scores", "u").output for row in rows)
    assert [one["series"] for one in json.loads(run("list", "--json").output)] == [2]


def test_the_last_column_of_the_table_has_the_drift_alarm_and_errors(
    folder, redis, redis_server, monkeypatch
):
    run("append", "u", folder)
    HandWorker(redis, redis_server.url).run()
    rows = Feed.rows

    def noted(feed: Feed) -> list[dict]:
        first, second = rows(feed)
        return [first | {"drift": "too_narrow"}, second | {"error": "MODEL_FAILED"}]

    monkeypatch.setattr(Feed, "rows", noted)
    lines = [line.rstrip() for line in run("latest", "u").output.splitlines()]
    assert [line.startswith(("AAA", "BBB")) for line in map(str.strip, lines)].count(True) == 2
    assert any(line.endswith(" drift: too narrow") for line in lines)
    assert any(line.endswith(" MODEL_FAILED") for line in lines)


def test_a_feed_has_the_options_of_the_python_client(folder, redis, redis_server):
    known = {option.name for option in create.params} - {"name", "open_bars", "no_fallback"}
    left_out = {"repair", "context_policy", "closed_only", "allow_fallback"}
    assert known == FeedOptions.__annotations__.keys() - left_out
    given = ("--missing", "ffill", "--calibrated", "--device", "cpu", "--temperature", 0.5, "--top-p", 0.9)
    given += ("--max-bars", 600, "--keep", "close", "--keep", "high", "--open-bars", "--no-fallback")
    assert run("create", "v", *given).exit_code == 0
    spec = Feed.open("v", url=redis_server.url).spec.as_given()
    wanted = {"missing": "ffill", "calibrated": True, "device": "cpu", "temperature": 0.5, "top_p": 0.9}
    wanted |= {"max_bars": 600, "keep": ["close", "high"], "closed_only": False, "allow_fallback": False}
    assert spec | wanted == spec


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("create", "u", "--pred-len", 3),
            f"has --event [{UP!r}], not []: give the same, or remove the feed with `kronos feed",
        ),
        (("create", "u", "--pred-len", 3, "--event", UP, "--samples", 9), "has --samples 8, not 9: give the"),
        (
            ("create", "u", "--pred-len", 3, "--event", UP, "--open-bars"),
            "has --open-bars False, not True: give",
        ),
        (("scores", "v"), "there is no feed 'v': make it with `kronos feed create`"),
        (("latest", "plain", "--rank", UP), f"has no events to rank by: create one with --event {UP!r}"),
        (("latest", "u", "--rank", "low<last at end"), f"--rank must be one of the feed's events ({UP})"),
    ],
)
def test_errors_name_options_of_the_command_line(folder, words, message):
    assert run("create", "plain", "--pred-len", 3).exit_code == 0
    refused = run(*words)
    assert refused.exit_code == 1
    assert message in refused.stderr


def test_a_model_that_nobody_has_is_warned_of(redis, redis_server, monkeypatch):
    def warning(model: str) -> str:
        redis.flushall()
        made = run("create", "v", "--pred-len", 3, "--model", model)
        assert made.exit_code == 0
        return made.stderr

    assert "kronos-tinny is no model of a live worker" in (found := warning("kronos-tinny"))
    assert "; did you mean kronos-tiny? Unless a worker's KRONOS_MODELS names it" in found
    assert warning("kronos-tiny") == warning("tiny") == ""
    assert "small is no model" in warning("small")
    counts = {"jobs": 0, "slots": 0, "running": 0, "waiting": 0}
    held = {"id": "NeoQuasar/Kronos-small", "revision": None, "state": "loading", **counts}
    small = fake_worker(models=[held])
    monkeypatch.setattr(ForecastClient, "workers", lambda _: [small])
    assert warning("small") == warning("NeoQuasar/Kronos-small") == ""


def test_lines_of_watch_are_whole_updates(folder, redis, redis_server, monkeypatch):
    updates = Feed.updates
    monkeypatch.setattr(Feed, "updates", lambda feed, after: updates(feed, after=after, timeout_s=0.1))
    run("append", "u", folder)
    HandWorker(redis, redis_server.url).run()
    lines = [json.loads(line) for line in run("watch", "u", "--after", "0").output.splitlines()]
    assert [line["series"] for line in lines] == ["AAA", "BBB"]
    for line in lines:  # kronos replay reads these
        assert Manifest.model_validate(line["forecast"]["manifest"]).feed == "u"


def test_a_file_that_fails_stops_no_other(folder):
    (folder / "bad.csv").write_text("x,y\n1,2\n")
    done = run("append", "u", folder, "--json")
    assert done.exit_code == 1
    outcomes = {Path(one["file"]).name: one for one in json.loads(done.stdout)}
    assert outcomes["bad.csv"]["error"]["code"] == "INVALID_INPUT"
    assert outcomes["AAA.csv"]["num_new"] == 60
    assert "nothing new" in run("append", "u", folder / "AAA.csv").output


def test_what_is_odd_about_a_file_is_warned_of(folder):
    file = folder / "AAA.csv"
    *lines, last = file.read_text().splitlines()
    time, opened, high, low, _, *rest = last.split(",")
    odd = ",".join([time, opened, high, low, "1.1", *rest])
    file.write_text("\n".join([*lines, lines[-1], odd]))
    done = run("append", "u", file, "--drop-bad-rows")
    wanted = [
        "rows left out: 1 duplicate time; ",
        "the last line has no line end: the file may be cut",
        f"series 'AAA': 1 bar has an open or close outside low to high: at {time}, close 1.1 is below",
    ]
    texts = done.stderr.splitlines()
    assert [text for text, begin in zip(texts, wanted, strict=True) if f"{file}: {begin}" not in text] == []
    (outcome,) = json.loads(run("append", "u", file, "--drop-bad-rows", "--replace", "--json").stdout)
    assert [f"Warning: {file}: {text}" for text in outcome["warnings"]] == texts
    (refused,) = json.loads(run("append", "u", file, "--json").stdout)
    assert refused["error"]["code"] == "INVALID_INPUT"


def test_replaced_series_are_exchanged_whole(folder):
    run("append", "u", folder)
    write(folder / "AAA.csv", 60, seed=3)
    refused = run("append", "u", folder / "AAA.csv")
    assert "FEED_BAR_CHANGED" in refused.output
    assert "--replace" in refused.output
    assert "AAA.csv: 60 new (1 series)" in run("append", "u", folder / "AAA.csv", "--replace").output


@pytest.fixture
def follow(folder, monkeypatch):
    """Follow the folder with steps between looks: the exit code, and the lines without the folder."""

    def run_with(*between: Callable[[], object], name: str = "u") -> tuple[int, list[str]]:
        steps = iter(between)

        def sleep(_: float) -> None:
            if (step := next(steps, None)) is None:
                raise KeyboardInterrupt
            step()

        monkeypatch.setattr("kronos_cli.commands.feed.time.sleep", sleep)
        done = run("follow", name, folder)
        return done.exit_code, [line.removeprefix(f"{folder}/") for line in done.output.splitlines()]

    return run_with


FIRST = ["AAA.csv: 60 new (1 series)", "BBB.csv: 60 new (1 series)"]


def test_followed_files_are_appended_when_they_change(folder, follow):
    code, lines = follow(lambda: write(folder / "BBB.csv", 62, seed=2), lambda: None)
    assert code == 130
    assert lines == [*FIRST, "BBB.csv: 2 new (1 series)"]


def test_a_line_is_followed_once_it_has_its_end(folder, follow):
    file = folder / "BBB.csv"
    *lines, last = write(file, 62, seed=2).read_text().splitlines(keepends=True)
    steps = (lines, [*lines, last[:-3]], [*lines, last[:-1]], [*lines, last])
    first, *others = [partial(file.write_text, "".join(step)) for step in steps]
    first()
    _, printed = follow(*others)
    left_out = f"Warning: {folder}/BBB.csv: the last line has no line end yet, so it is left out"
    nothing = ["BBB.csv: nothing new (0 series)", left_out]
    assert printed == [
        FIRST[0],
        "BBB.csv: 61 new (1 series)",
        *nothing,
        *nothing,
        "BBB.csv: 1 new (1 series)",
    ]


def test_a_file_replaced_by_one_of_the_same_size_and_time_is_appended(folder, follow):
    def replace() -> None:
        file = folder / "AAA.csv"
        lines, stat = file.read_text().splitlines(), file.stat()
        *cells, last = lines[-1].split(",")
        other = folder / ".new"
        changed = last[:-1] + ("1" if last[-1] != "1" else "2")
        other.write_text("".join(f"{line}\n" for line in [*lines[:-1], ",".join([*cells, changed])]))
        os.utime(other, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        assert other.stat().st_size == stat.st_size
        other.rename(file)

    assert follow(replace)[1][2] == "AAA.csv: 1 corrected (1 series)"


def test_a_file_that_is_renamed_while_the_folder_is_read_stops_nothing(folder, follow, monkeypatch):
    listed = {"new": folder / "new.csv", "BBB": folder / "BBB.csv"}
    monkeypatch.setattr("kronos_cli.commands.feed.find_inputs", lambda *_: listed)
    assert follow() == (130, FIRST[1:])


@pytest.mark.parametrize("code", [ErrorCode.BROKER_UNREACHABLE, ErrorCode.FEED_BUSY])
def test_an_append_that_failed_is_tried_again_and_reported_once(follow, monkeypatch, code):
    def fail(*_: object) -> bool:
        raise JobError(code, "wait")

    with monkeypatch.context() as away:
        away.setattr(FeedStore, "write", fail)
        lines = follow(lambda: None, lambda: None, away.undo, lambda: None)[1]
    assert lines.count(f"AAA.csv: {code}: wait") == 1
    assert lines[-2:] == FIRST


def test_a_bar_that_was_held_back_is_appended_once_it_has_ended(folder, follow, monkeypatch):
    assert run("create", "utc", "--pred-len", 3, "--timezone", "UTC").exit_code == 0
    last = datetime.fromisoformat(candles(bars=60).timestamps[-1]).replace(tzinfo=UTC).timestamp()
    clock, until = [last + 60], datetime.fromtimestamp(last + 300, UTC).isoformat()
    monkeypatch.setattr(FeedStore, "now", lambda _: clock[0])
    lines = follow(lambda: None, lambda: clock.append(clock.pop() + 3600), lambda: None, name="utc")[1]
    assert lines[0] == f"AAA.csv: 59 new, 1 held back until {until} (1 series)"
    assert lines[-2:] == ["AAA.csv: 1 new (1 series)", "BBB.csv: 1 new (1 series)"]


def test_a_lost_series_stops_no_other_file(folder, follow, redis):
    def lose() -> None:
        (records,) = redis.keys("kronos:feed_series:*")
        redis.hdel(records, "AAA")
        write(folder / "AAA.csv", 61)
        write(folder / "BBB.csv", 61, seed=2)

    lines = follow(lose, lambda: None)[1][2:]
    assert [line[:18] for line in lines] == ["AAA.csv: FEED_GONE", "BBB.csv: 1 new (1 "]
    assert "kronos feed append --replace" in lines[0]


def test_a_feed_that_was_made_anew_is_followed_from_whole_windows(folder, follow, redis):
    def anew() -> None:
        redis.flushall()
        run("create", "u", "--pred-len", 5, "--samples", 8)
        write(folder / "BBB.csv", 62, seed=2)

    lines = follow(anew, lambda: None)[1]
    assert [line[:18] for line in lines[2:]] == [
        "BBB.csv: FEED_GONE",
        "AAA.csv: 60 new (1",
        "BBB.csv: 62 new (1",
    ]


def test_a_feed_that_is_gone_ends_the_command(folder, follow, redis):
    def lose() -> None:
        redis.flushall()
        write(folder / "BBB.csv", 62, seed=2)

    code, lines = follow(lose)
    assert code == 1
    assert "there is no feed 'u': make it with" in lines[-1]


def test_a_feed_is_deleted_once_it_was_confirmed(folder):
    assert CliRunner().invoke(feed, ["delete", "u"], input="n\n").exit_code == 1
    assert run("delete", "u", "--yes").output == "Feed u is deleted.\n"
    refused = run("latest", "u")
    assert "FEED_NOT_FOUND" in refused.output
    assert refused.exit_code == 1
    assert "no feeds" in run("list").output
