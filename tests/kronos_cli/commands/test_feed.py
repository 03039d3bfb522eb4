"""``kronos feed`` as users call it, with the fake's forecasts for a worker."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kronos_cli.commands.feed import feed
from kronos_cli.main import cli
from kronos_client.contract.manifest import Manifest
from kronos_client.feeds.feed import Feed
from kronos_model.bars.synthetic import candles
from tests.kronos_client.feeds.test_forecasts import HandWorker

UP = "close>last at end"


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(cli, ["feed", *map(str, words)], prog_name="kronos")


def write(path: Path, num_bars: int, seed: int = 1) -> Path:
    columns = candles(seed=seed, bars=100).as_dict()
    rows = zip(*([*columns[name]][:num_bars] for name in columns), strict=True)
    path.write_text("\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows)]))
    return path


@pytest.fixture
def folder(tmp_path, redis):
    write(tmp_path / "AAA.csv", 60)
    write(tmp_path / "BBB.csv", 60, seed=2)
    assert run("create", "u", "--pred-len", 3, "--samples", 8, "--event", UP).exit_code == 0
    return tmp_path


def test_files_become_a_table_of_forecasts(folder, redis, redis_server):
    assert "BBB.csv: 60 new (1 series)" in run("append", "u", folder).output
    HandWorker(redis, redis_server.url).run()
    rows = json.loads(run("latest", "u", "--json").output)
    assert [row["id"] for row in rows] == ["AAA", "BBB"]
    assert all(row["close_q0.1"] < row["close_q0.9"] and row["error"] is None for row in rows)
    shown = run("latest", "u", "--rank", UP).output
    assert all(text in shown for text in ("AAA", "BBB", UP, " to "))
    assert run("latest", "u", "--csv").output.count("\n") == 3
    assert "Nothing is scored yet" in run("scores", "u").output
    write(folder / "AAA.csv", 62)
    run("append", "u", folder)
    HandWorker(redis, redis_server.url).run()
    assert len(json.loads(run("scores", "u", "--by", "horizon", "--json").output)) == 3
    assert "AAA" in run("scores", "u").output
    assert [one["series"] for one in json.loads(run("list", "--json").output)] == [2]


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


def test_followed_files_are_appended_when_they_change(folder, monkeypatch):
    def grow(_: float) -> None:
        if (folder / "BBB.csv").read_text().count("\n") > 60:
            raise KeyboardInterrupt
        write(folder / "BBB.csv", 62, seed=2)

    monkeypatch.setattr("kronos_cli.commands.feed.time.sleep", grow)
    done = run("follow", "u", folder)
    assert done.exit_code == 130
    assert [line.partition(": ")[2] for line in done.output.splitlines()[:3]] == [
        "60 new (1 series)",
        "60 new (1 series)",
        "2 new (1 series)",
    ]


def test_a_feed_is_deleted_once_it_was_confirmed(folder):
    assert CliRunner().invoke(feed, ["delete", "u"], input="n\n").exit_code == 1
    assert run("delete", "u", "--yes").output == "Feed u is deleted.\n"
    refused = run("latest", "u")
    assert "FEED_NOT_FOUND" in refused.output
    assert refused.exit_code == 1
    assert "no feeds" in run("list").output
