"""Every vendor's sample is read with no option, and alike, in every way in; a cut file is named in each."""

import gzip
from pathlib import Path
from typing import Any, get_args

import pandas as pd
import pytest
from click.testing import CliRunner

from api_stub.routes import candles
from api_stub.uploads import dataset_folder, file_child
from kronos_cli.commands import backtest, forecast
from kronos_cli.main import cli
from kronos_client.backtesting.run import read_candles
from kronos_client.contract.columns import decode_column
from kronos_client.contract.errors import JobError
from kronos_client.testing import FakeForecastClient
from kronos_model.bars.files.options import MAPPED
from kronos_model.errors import KronosError
from kronos_model.finetuning.config_parts import ColumnName, ReadConfig
from kronos_model.finetuning.data import read_files
from tests.kronos_model.bars.files.candle_files import EXPECTED, FOLDER, READABLE

SAMPLES = [
    name for name in READABLE if "options" not in EXPECTED[name] and len(EXPECTED[name]["timestamps"]) > 2
]
CUT = {
    "a.csv": b"date,open,high,low,close\n2024-06-18,1,2,1,1\n2024-06-19,1,2,1,1\n2024-06-20,1,2",
    "b.csv": b"date,open,high,low,close\n2024-06-18,1,2,1,1\n" + bytes(64),
    "c.csv.gz": gzip.compress((FOLDER / "plain.csv").read_bytes())[:-20],
}


class WaysIn:
    """The ways by which files come in: each returns the closes of the first instrument, or an error."""

    def __init__(self, http: Any, jobs: Any, folder: Path) -> None:
        self.http, self.jobs, self.folder, self.client = http, jobs, folder, FakeForecastClient()

    def _run(self, *arguments: object) -> str:
        return CliRunner().invoke(cli, [*map(str, arguments)]).output

    def _post(self, address: str, path: Path, **params: int) -> dict[str, Any]:
        kind = "application/gzip" if path.suffix == ".gz" else "text/csv"
        content = {"content": path.read_bytes(), "headers": {"Content-Type": kind}}
        answer: dict[str, Any] = self.http.post(
            address, params={"name": path.name} | params, **content
        ).json()
        return answer

    def command(self, path: Path) -> list[float] | str:
        self.client, output = FakeForecastClient(), self.folder / f"{path.name}.csv"
        text = self._run("forecast", path, "--pred-len", 1, "--samples", 1, "--output", output)
        job = next(iter(self.client.jobs.values()), None)
        return text if job is None else decode_column(job["series"][0]["close"]).tolist()

    def page(self, path: Path) -> list[float] | str:
        found = self._post("/v1/candles", path)
        return found["series"]["close"] if "series" in found else found["detail"]

    def upload(self, path: Path) -> list[float] | str:
        found = self._post("/v1/forecasts/file", path, pred_len=1)
        if "detail" in found:
            return found["detail"]
        return decode_column(self.jobs.sent()[-1]["series"][0]["close"]).tolist()

    def data_folder(self, path: Path) -> list[float] | str:
        found = self._post("/v1/datasets", path)
        if "detail" in found:
            return found["detail"]
        return self.finetuning(self.folder / "data" / path.name)

    def finetuning(self, path: Path) -> list[float]:
        return read_files([str(path)], ReadConfig(), "data.")[0][0].bars[:, 3].tolist()

    def backtest(self, path: Path) -> list[float]:
        return read_candles(path).instruments[0].bars[:, 3].tolist()


WAYS = [name for name in vars(WaysIn) if not name.startswith("_")]


@pytest.fixture
def ways(http: Any, jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WaysIn:
    async def read_upload(path, name, options, code, bars=None):  # a process for each imports pandas again
        try:
            return file_child.read(path, vars(options), bars)
        except KronosError as error:
            raise JobError(code, error.message.replace(str(path), name), error.field) from None

    for module in (candles, dataset_folder):
        monkeypatch.setattr(module, "read_upload", read_upload)
    ways = WaysIn(http, jobs, tmp_path)
    for command in (forecast, backtest):
        monkeypatch.setattr(command, "ForecastClient", lambda **_: ways.client)
    return ways


@pytest.mark.parametrize("way", WAYS)
def test_every_sample_is_read_without_an_option(ways: WaysIn, way: str) -> None:
    for name in SAMPLES:
        found = getattr(ways, way)(FOLDER / name)
        assert found == pytest.approx(EXPECTED[name]["columns"]["close"]), name


def test_every_sample_is_explained(ways: WaysIn) -> None:
    text = ways._run("forecast", "--explain", *(FOLDER / name for name in SAMPLES))
    assert text.count("\n  form: ") == text.count("\n  rows: ") == len(SAMPLES)
    assert text.count("\n  line 2, above the titles, is left out") == 1  # comdirect's


@pytest.mark.parametrize("way", WAYS)
def test_a_cut_file_is_named(ways: WaysIn, way: str, tmp_path: Path) -> None:
    for name, content in CUT.items():
        (tmp_path / name).write_bytes(content)
        try:
            found = getattr(ways, way)(tmp_path / name)
        except (KronosError, JobError) as error:
            found = error.message
        assert name in found, found
        assert any(text in found for text in ("was not written or downloaded", "cut before its end")), found


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("num_bars", [30, 9])
def test_a_bad_row_of_a_file_without_titles_is_named(
    ways: WaysIn, way: str, num_bars: int, tmp_path: Path
) -> None:
    rows = [f"2024.06.18;10:{n:02};{n + 10};{n + 12}.5;{n + 9}.5;{n + 11};{n + 500}" for n in range(num_bars)]
    rows[5] = rows[5].replace(";15;", ";15 EUR;")
    (tmp_path / "a.csv").write_text("\n".join(rows) + "\n")
    try:
        found = getattr(ways, way)(tmp_path / "a.csv")
    except (KronosError, JobError) as error:
        found = error.message
    assert "line 6, " in found
    assert (
        "'15 EUR' where a number" in found
        if num_bars == 30
        else "by its number: timestamps=1, time=2" in found
    )
    if way == "command":
        assert ("--drop-bad-rows" if num_bars == 30 else "(--columns)") in found


def test_jobs_that_read_files_name_the_same_columns() -> None:
    assert get_args(ColumnName) == MAPPED


def test_a_backtest_leaves_out_by_name_what_is_too_short(ways: WaysIn, tmp_path: Path) -> None:
    times = pd.date_range("2024-06-18", periods=30).strftime("%Y%m%d")
    bars = pd.DataFrame({"ts_code": "LONG", "trade_date": times, "close": 1.5}).assign(open=1, high=2, low=1)
    short = bars.tail(4).assign(ts_code="SHORT")
    pd.concat([bars, short]).to_csv(tmp_path / "both.csv", index=False)
    options = ["--lookback", 5, "--horizon", 2, "--samples", 2, "--windows", 1, "--output", tmp_path / "b"]
    text = ways._run("backtest", tmp_path / "both.csv", *options)
    assert "SHORT is left out: it has 4 bars, and a window takes 7" in text
    assert [job["series"][0]["id"] for job in ways.client.jobs.values()] != []
