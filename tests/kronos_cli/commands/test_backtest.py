"""``kronos backtest``: its options, and what it prints and writes. A fake client answers."""

import json
from contextlib import closing

import pytest
from click.testing import CliRunner

from kronos_cli.commands import backtest as command
from kronos_cli.main import cli
from kronos_client.backtesting.run import begin_backtest, find_lookback
from kronos_client.contract.errors import JobError
from kronos_client.registry.model_registry import ModelRegistry
from kronos_client.testing import FakeForecastClient
from kronos_model.checkpoints.names import BUNDLED_FOLDER
from tests.kronos_client.backtesting.test_run import walk


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch):
    client = FakeForecastClient()
    monkeypatch.setattr(command, "ForecastClient", lambda **_: client)
    monkeypatch.setattr(client, "close", lambda: None)  # of one run: another follows
    return client


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "daily.csv"
    walk(1).rename(columns={"close": "Last"}).to_csv(path)
    return path


def run(*args: object):
    return CliRunner().invoke(cli, ["backtest", *map(str, args)])


def test_a_backtest_of_a_file_prints_the_verdict_and_leaves_the_report(client, file, tmp_path):
    output = tmp_path / "out"
    options = ["--windows", 8, "--lookback", 40, "--horizon", 5, "--samples", 6, "--model", "one"]
    options += ["--columns", "close=Last", "--top", 3, "--cost-bps", 2]
    done = run(file, "--output", output, *options, "--from", "2024-03-01", "--to", "2024-09-30")
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[0] == "one, 8 windows:"
    report = json.loads((output / "report.json").read_text())
    assert report["models"]["one"]["verdict"][0] in done.output
    assert f"Report: {output / 'report.html'}" in done.output
    asked = report["asked"]
    assert (asked["start"], asked["samples"], asked["horizon"]) == ("2024-03-01T00:00:00", 6, 5)
    assert (asked["top"], asked["cost_bps"]) == (3, 2)
    assert len(client.jobs) == 2
    again = run(file, "--output", output, *options, "--from", "2024-03-01", "--to", "2024-09-30", "--json")
    assert json.loads(again.stdout) == report
    assert len(client.jobs) == 2
    fresh = run(file, "--output", output, *options, "--fresh")
    assert fresh.exit_code == 0, fresh.output
    one = run(file, "--output", tmp_path / "one", *options, "--windows", 1)
    assert one.output.splitlines()[0] == "one, 1 window:"


def test_a_lookback_that_nobody_announces_is_asked_for(client, file, tmp_path):
    done = run(file, "--output", tmp_path / "out", "--json")
    assert done.exit_code == 1
    error = json.loads(done.stdout)["error"]
    assert error["code"] == "MISSING_FIELD"
    assert "start one, or give the workers' model folder or the lookback" in error["message"]


def test_a_version_that_no_worker_has_loaded_is_read_as_the_model_folder_says(tmp_path):
    registry, kept = ModelRegistry(tmp_path), {"max_context": 64, "lookback": 24}
    registry.register(BUNDLED_FOLDER / "kronos-tiny", "mine", job_id="", fingerprint="", metadata=kept)
    assert find_lookback([], ["mine@1"], 4, registry) == 24
    options = {"models": ["mine@1"], "horizon": 4, "windows": 2, "model_folder": str(tmp_path)}
    fake = FakeForecastClient()
    fake.live_workers = []
    with closing(
        next(begin_backtest({"one": walk(1)}, tmp_path / "out", fake._dispatcher, options))
    ) as begun:
        assert begun.plan.options.lookback == 24
    for name, known in (("mine@2", registry), ("mine@1", None)):
        with pytest.raises(JobError, match=f"no live worker holds the model {name}"):
            find_lookback([], [name], 4, known)
    with pytest.raises(JobError, match=r"; did you mean mine\?"):
        find_lookback([], ["mime@1"], 4, registry)


def test_fresh_deletes_forecasts_only_for_a_backtest_that_begins(client, file, tmp_path):
    options = ["--columns", "close=Last", "--output", tmp_path / "out", "--windows", 2, "--horizon", 5]
    assert run(file, *options, "--lookback", 40).exit_code == 0
    refused = run(file, *options, "--lookback", 4000, "--fresh")
    assert (refused.exit_code, "no window fits" in refused.output) == (1, True)
    outside = run(file, *options, "--lookback", 40, "--from", "2030-01-01", "--fresh")
    assert "the longest instrument has 300, from 2024-01-01T00:00:00 to " in outside.output
    other = run(file, *options, "--lookback", 41)
    assert "choose another folder, or --fresh to begin anew" in other.output
    assert (tmp_path / "out" / "forecasts.sqlite").exists()
    in_a_file = run(file, *options, "--lookback", 40, "--fresh", "--output", file)
    assert "cannot be written" in in_a_file.output


def test_a_file_that_cannot_be_used_is_reported_with_the_option_that_helps(client, file, tmp_path):
    options = ["--columns", "close=Last", "--output", tmp_path / "out", "--lookback", 40]
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines[:3], lines[3].split(",")[0] + ",,1,1,1,1,1", *lines[4:]]))
    assert "--drop-bad-rows" in run(file, *options).output
    named = [f"{line},{name}" for line, name in zip(lines, ["symbol", *"AB" * len(lines)], strict=False)]
    file.write_text("\n".join(named))
    assert "2 instruments in its column symbol: name that column" in run(file, *options).output
