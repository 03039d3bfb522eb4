"""Uploads are stored complete, readable and under a safe name, or not at all."""

import asyncio
import errno
import io
import os
import signal
import subprocess
import sys
import time

import httpx2
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastapi.testclient import TestClient
from pydantic import SecretStr

from api_stub.main import create_app
from api_stub.uploads import body, dataset_folder, file_process
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_model.bars.files.instruments import read_instruments
from kronos_model.bars.files.options import ReadOptions
from kronos_model.bars.synthetic import candles
from kronos_model.processes import children
from tests.api_stub.conftest import ADDRESS
from tests.processes import await_end

URL = "/v1/datasets"
CSV = {"Content-Type": "text/csv"}
PARQUET = {"Content-Type": "application/vnd.apache.parquet"}


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return pd.DataFrame(candles(seed=1, bars=40).as_dict())


@pytest.fixture(scope="module")
def csv(table: pd.DataFrame) -> bytes:
    return table.to_csv(index=False).encode()


@pytest.fixture
def read_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads files in this process: a new one imports pandas each time."""

    async def read_upload(path, name, options, code):
        return read_instruments([str(path)], options)[1].short()

    monkeypatch.setattr(dataset_folder, "read_upload", read_upload)


def left_behind(settings) -> list[str]:
    return [path.name for path in settings.data_folder.rglob("*") if ".upload" in str(path)]


def test_a_csv_is_stored_unchanged(http, settings, csv):
    answer = http.post(URL, params={"name": "BTC-USD.csv"}, content=csv, headers=CSV)
    assert answer.status_code == 201, answer.text
    report = answer.json()
    assert (report["name"], report["num_bytes"], report["is_replaced"]) == ("BTC-USD.csv", len(csv), False)
    assert (report["num_instruments"], report["num_bars"], report["dropped"]) == (1, 40, {})
    assert report["instruments"][0]["name"] == "BTC-USD"
    assert (settings.data_folder / "BTC-USD.csv").read_bytes() == csv
    assert http.get(URL).json()["datasets"] == [{"name": "BTC-USD.csv", "num_bytes": len(csv)}]
    assert left_behind(settings) == []


def test_a_parquet_file_of_several_instruments_is_stored(http, table):
    file = io.BytesIO()
    both = pd.concat([table.assign(Symbol="A"), table.assign(Symbol="B")]).rename(columns={"close": "Last"})
    both.to_parquet(file, index=False)
    answer = http.post(
        URL,
        params={"name": "market.parquet", "id_column": "Symbol", "column": "close:Last"},
        content=file.getvalue(),
        headers=PARQUET,
    )
    assert answer.status_code == 201, answer.text
    assert [one["name"] for one in answer.json()["instruments"]] == ["A", "B"]


def test_a_file_is_replaced_only_on_request(http, settings, csv):
    params = {"name": "a.csv"}
    assert http.post(URL, params=params, content=csv, headers=CSV).status_code == 201
    changed = csv + b"soon,1,1,1,1,1,1\n"
    answer = http.post(URL, params=params, content=changed, headers=CSV)
    assert (answer.status_code, answer.json()["code"]) == (409, "DATASET_EXISTS")
    assert (settings.data_folder / "a.csv").read_bytes() == csv
    answer = http.post(
        URL, params=params | {"replace": "true", "drop_bad_rows": "true"}, content=changed, headers=CSV
    )
    assert (answer.status_code, answer.json()["is_replaced"]) == (201, True)
    assert answer.json()["bad_rows"][0].startswith("a.csv, line 42, column timestamps: there is 'soon'")
    assert (settings.data_folder / "a.csv").read_bytes() == changed


@pytest.mark.usefixtures("read_here")
def test_a_mounted_bucket_without_hard_links_keeps_a_taken_name_too(http, settings, csv, monkeypatch):
    def refuse(source, target):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(os, "link", refuse)
    for status in (201, 409):
        assert http.post(URL, params={"name": "a.csv"}, content=csv, headers=CSV).status_code == status
    assert (settings.data_folder / "a.csv").read_bytes() == csv


def test_an_unsafe_name_is_refused(http, settings, csv):
    for name in (
        "../a.csv", "..%2fa.csv", "/etc/a.csv", "a/b.csv", "a\\b.csv", ".hidden.csv", "..csv", ".csv",
        "a.csv\n", "a.csv\0.csv", "a.exe", "a", "", "a" * 101 + ".csv", "ä.csv", "~a.csv", "C:a.csv",
    ):  # fmt: skip
        answer = http.post(URL, params={"name": name}, content=csv, headers=CSV)
        assert (answer.status_code, answer.json()["field"]) == (422, "name"), name
        assert "end in .csv, .csv.gz, .parquet or .pq" in answer.json()["detail"]
    assert not list(settings.data_folder.rglob("*"))
    assert not list(settings.data_folder.parent.glob("*.csv"))


@pytest.mark.parametrize(
    ("name", "content", "code", "field"),
    [
        ("a.csv", b"a,b\n1,2\n", "TRAINING_DATA_INVALID", "column"),
        ("a.csv", b"", "TRAINING_DATA_INVALID", "body"),
        ("a.csv", b"\xff\xfe\x00binary", "TRAINING_DATA_INVALID", "body"),
        ("a.parquet", b"PAR1 and no more", "TRAINING_DATA_INVALID", "body"),
        ("a.csv", b"timestamps,open,high,low,close\n2024-01-01,1,0.5,1,1\n", "TRAINING_DATA_INVALID", "body"),
        ("a.csv", b"date,open,high,low,close\n1/2/2024,1,1,1,1\n", "TRAINING_DATA_INVALID", "date_format"),
    ],
    ids=["columns", "empty", "not text", "not Parquet", "no usable row", "dates"],
)
def test_a_file_that_finetuning_could_not_read_is_refused(http, settings, name, content, code, field):
    headers = CSV if name.endswith(".csv") else PARQUET
    answer = http.post(URL, params={"name": name}, content=content, headers=headers)
    problem = answer.json()
    assert (answer.status_code, problem["code"], problem["field"]) == (422, code, field)
    assert name in problem["detail"]
    assert str(settings.data_folder) not in answer.text
    assert ".upload" not in answer.text
    assert not list(settings.data_folder.iterdir())


def test_a_file_that_would_take_all_memory_is_refused(http, settings, table, monkeypatch):
    """Two megabytes of Parquet whose times take 150, and half a gigabyte while they are read."""
    monkeypatch.setattr(children, "subprocess", subprocess)  # a fork here would hold more
    monkeypatch.setattr(file_process, "MAX_MEMORY_BYTES", 2**29)
    small = io.BytesIO()
    table.to_parquet(small)
    answer = http.post(URL, params={"name": "small.parquet"}, content=small.getvalue(), headers=PARQUET)
    assert answer.status_code == 201, answer.text
    num_rows, file = 50_000, io.BytesIO()
    times = pa.DictionaryArray.from_arrays(pa.array([0] * num_rows, pa.int8()), ["2024-01-01" + " " * 3_000])
    prices = np.random.default_rng(0).uniform(1, 2, num_rows)  # else it is refused by its ratio
    columns = {"timestamps": times} | dict.fromkeys(["open", "high", "low", "close"], prices)
    pq.write_table(pa.table(columns), file, compression="zstd")
    assert len(file.getvalue()) < 2**21
    answer = http.post(URL, params={"name": "bomb.parquet"}, content=file.getvalue(), headers=PARQUET)
    assert (answer.status_code, answer.json()["code"]) == (422, "TRAINING_DATA_INVALID")
    assert "memory" in answer.json()["detail"], answer.text
    assert [path.name for path in settings.data_folder.iterdir()] == ["small.parquet"]


ENDS = {
    "killed": (signal.SIGKILL, "", "TRAINING_DATA_INVALID"),
    "out of time": (signal.SIGXCPU, "", "TRAINING_DATA_INVALID"),
    "no memory": (3, "MemoryError", "TRAINING_DATA_INVALID"),
    "no memory in C++": (signal.SIGABRT, "what(): std::bad_alloc", "TRAINING_DATA_INVALID"),
    "broken": (3, "ModuleNotFoundError: No module named 'pandas'", "INTERNAL"),
    "crashed": (signal.SIGSEGV, "", "INTERNAL"),
}


@pytest.mark.parametrize(("end", "words", "code"), ENDS.values(), ids=ENDS.keys())
def test_the_end_of_the_reading_process_decides_the_code(
    http, settings, csv, caplog, monkeypatch, end, words, code
):
    is_signal = isinstance(end, signal.Signals)
    script = f"""import os, sys, resource
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
sys.stderr.write("line\\n" * 2**20 + {words!r})
sys.stderr.flush()
{f"os.kill(os.getpid(), {int(end)})" if is_signal else f"sys.exit({end})"}"""
    monkeypatch.setattr(file_process, "COMMAND", (sys.executable, "-c", script))
    answer = http.post(URL, params={"name": "a.csv"}, content=csv, headers=CSV)
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == ({"INTERNAL": 500}.get(code, 422), code)
    assert ("split it" in problem["detail"]) == (code != "INTERNAL")
    (line,) = [record.getMessage() for record in caplog.records if record.name == file_process.__name__]
    assert (f"signal {int(end)}" if is_signal else f"status {end}") in line
    assert words in line
    assert len(line) < 3 * file_process.MAX_STDERR_CHARS
    assert "\n" not in line
    assert not words or words not in answer.text
    assert left_behind(settings) == []


def test_an_empty_file_is_refused_without_a_process(http, monkeypatch):
    monkeypatch.setattr(file_process, "COMMAND", ("/nothing",))
    problem = http.post(URL, params={"name": "a.csv"}, content=b"", headers=CSV).json()
    assert (problem["code"], problem["detail"], problem["field"]) == (
        ErrorCode.TRAINING_DATA_INVALID, "a.csv is empty", "body",
    )  # fmt: skip


def test_a_file_that_takes_too_long_is_refused(http, csv, monkeypatch):
    monkeypatch.setattr(file_process, "COMMAND", (sys.executable, "-c", "import time; time.sleep(60)"))
    monkeypatch.setattr(file_process, "TIMEOUT_S", 0.2)
    answer = http.post(URL, params={"name": "a.csv"}, content=csv, headers=CSV)
    assert (answer.status_code, answer.json()["code"]) == (422, "TRAINING_DATA_INVALID")


def test_an_abandoned_upload_ends_its_reader(monkeypatch, tmp_path):
    pid = tmp_path / "pid"
    script = f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    monkeypatch.setattr(file_process, "COMMAND", (sys.executable, "-c", script))

    file = tmp_path / "a.csv"
    file.write_text("x")

    async def give_up() -> None:
        reading = asyncio.create_task(
            file_process.read_upload(file, file.name, ReadOptions(), ErrorCode.INVALID_INPUT)
        )
        while not (pid.exists() and pid.read_text()):
            await asyncio.sleep(0.01)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading

    asyncio.run(give_up())
    assert await_end(int(pid.read_text()))


def test_files_are_read_one_after_another(settings, csv, monkeypatch):
    """The container has memory for one reader."""
    now, most = 0, 0

    async def read(path, name, options, code):
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.02)
        now -= 1
        raise JobError(ErrorCode.TRAINING_DATA_INVALID, "read", "body")

    monkeypatch.setattr(dataset_folder, "read_upload", read)
    app = create_app(settings)

    async def ask() -> list[int]:
        transport = httpx2.ASGITransport(app=app)
        async with (
            app.router.lifespan_context(app),
            httpx2.AsyncClient(transport=transport, base_url=ADDRESS) as http,
        ):
            asked = [
                http.post(URL, params={"name": f"{name}.csv"}, content=csv, headers=CSV) for name in "abc"
            ]
            return [answer.status_code for answer in await asyncio.gather(*asked)]

    assert asyncio.run(ask()) == [422] * 3
    assert most == 1


@pytest.mark.usefixtures("read_here")
def test_a_suffix_becomes_lower_case(http, settings, csv):
    answer = http.post(URL, params={"name": "AAPL.CSV"}, content=csv, headers=CSV)
    assert (answer.status_code, answer.json()["name"]) == (201, "AAPL.csv")
    assert [path.name for path in settings.data_folder.iterdir()] == ["AAPL.csv"]


@pytest.mark.usefixtures("read_here")
def test_an_upload_does_not_write_through_a_link(http, settings, csv, tmp_path):
    settings.data_folder.mkdir()
    outside = tmp_path / "outside.csv"
    outside.write_text("mine")
    (settings.data_folder / "a.csv").symlink_to(outside)
    assert http.post(URL, params={"name": "a.csv"}, content=csv, headers=CSV).status_code == 409
    answer = http.post(URL, params={"name": "a.csv", "replace": "true"}, content=csv, headers=CSV)
    assert answer.status_code == 201
    assert outside.read_text() == "mine"
    (settings.data_folder / "dangling.csv").symlink_to(tmp_path / "nowhere.csv")
    answer = http.post(URL, params={"name": "dangling.csv"}, content=csv, headers=CSV)
    assert answer.status_code == 409
    assert not (tmp_path / "nowhere.csv").exists()


@pytest.mark.parametrize(
    ("name", "media_type"),
    [
        ("a.csv", "multipart/form-data; boundary=x"),
        ("a.csv", "application/x-www-form-urlencoded"),
        ("a.csv", "text/plain"),
        ("a.csv", "application/vnd.apache.parquet"),
        ("a.parquet", "text/csv"),
        ("a.csv", ""),
    ],
)
def test_another_content_type_is_refused(http, csv, name, media_type):
    answer = http.post(URL, params={"name": name}, content=csv, headers={"Content-Type": media_type})
    assert (answer.status_code, answer.json()["code"]) == (415, "UNSUPPORTED_MEDIA_TYPE")


@pytest.mark.parametrize("column", ["close", "close:", ":Last", "secret:Last"])
def test_an_invalid_column_mapping_is_refused(http, csv, column):
    answer = http.post(URL, params={"name": "a.csv", "column": column}, content=csv, headers=CSV)
    assert (answer.status_code, answer.json()["field"]) == (422, "column")


def test_a_file_that_is_too_large_is_refused(settings, csv):
    small = settings.model_copy(update={"api_max_upload_bytes": 1024, "api_max_body_bytes": 2**20})
    with TestClient(create_app(small), base_url=ADDRESS) as http:
        answer = http.post(URL, params={"name": "a.csv"}, content=csv, headers=CSV)
    assert (answer.status_code, answer.json()["details"]) == (413, {"limit": 1024})


def test_without_a_data_folder_there_is_no_upload(settings, csv):
    with TestClient(create_app(settings.model_copy(update={"data_folder": None})), base_url=ADDRESS) as http:
        answer = http.post(URL, params={"name": "a.csv"}, content=csv, headers=CSV)
        assert (answer.status_code, answer.json()["code"]) == (422, "DATA_NOT_ALLOWED")
        assert http.get(URL).status_code == 422


@pytest.mark.usefixtures("read_here")
def test_leftovers_of_a_crash_are_removed_by_a_later_upload(http, settings, csv):
    old, new = (settings.data_folder / f".upload-{name}" for name in ("old", "new"))
    for folder in (old, new):
        folder.mkdir(parents=True)
    day_ago = time.time() - 25 * 3600
    os.utime(old, (day_ago, day_ago))
    assert http.post(URL, params={"name": "a.csv"}, content=csv, headers=CSV).status_code == 201
    assert (old.exists(), new.exists()) == (False, True)


def test_too_many_uploads_are_answered_with_503(settings, csv, monkeypatch):
    monkeypatch.setattr(body, "MAX_UPLOADS", 0)
    with TestClient(create_app(settings), base_url=ADDRESS) as http:
        answer = http.post(URL, params={"name": "a.csv"}, content=csv, headers=CSV)
    assert (answer.status_code, answer.json()["code"]) == (503, "OVERLOADED")


@pytest.mark.usefixtures("read_here")
def test_one_key_cannot_hold_the_places_of_others(settings, csv):
    keys = "first-key-of-the-test,second-key-of-the-test"
    app = create_app(settings.model_copy(update={"api_keys": SecretStr(keys)}))
    first, second = ({**CSV, "Authorization": f"Bearer {key}"} for key in keys.split(","))

    async def run() -> None:
        transport = httpx2.ASGITransport(app=app)
        is_open = asyncio.Event()

        async def held_back():
            yield csv[:9]
            await is_open.wait()
            yield csv[9:]

        async with (
            app.router.lifespan_context(app),
            httpx2.AsyncClient(transport=transport, base_url=ADDRESS) as http,
        ):

            def send(number, headers, content=csv):
                return http.post(URL, params={"name": f"{number}.csv"}, content=content, headers=headers)

            slow = [asyncio.create_task(send(number, first, held_back())) for number in range(4)]
            while app.state.backend.uploads.total() < len(slow):
                await asyncio.sleep(0.001)
            refused, other = await send("a", first), await send("b", second)
            is_open.set()
            done = [answer.status_code for answer in await asyncio.gather(*slow)]
            assert (refused.status_code, refused.json()["code"]) == (429, "RATE_LIMITED")
            assert (refused.headers["retry-after"], refused.json()["details"]) == ("5", {"limit": 4})
            assert [other.status_code, *done] == [201] * 5
            assert (await send("c", first)).status_code == 201

    asyncio.run(run())


def test_without_keys_an_address_is_one_sender(http, csv, monkeypatch):
    monkeypatch.setattr(body, "MAX_UPLOADS_OF_ONE", 0)
    answer = http.post(URL, params={"name": "a.csv"}, content=csv, headers=CSV)
    assert (answer.status_code, answer.json()["code"]) == (429, "RATE_LIMITED")


def test_hidden_files_and_links_are_not_listed(http, settings, tmp_path):
    folder = settings.data_folder / "crypto"
    folder.mkdir(parents=True)
    for name in ("a.csv", ".hidden.csv", "notes.txt"):
        (folder / name).write_text("x")
    (folder / "link.csv").symlink_to("/etc/passwd")
    assert http.get(URL).json()["datasets"] == [{"name": "crypto/a.csv", "num_bytes": 1}]
