"""The tools for agents, by the SDK's client over both transports, against real workers."""

import asyncio
import csv
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from datetime import datetime, timedelta
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pandas as pd
import pytest
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from kronos_cli.stack.local_redis import LocalRedis
from kronos_client.contract.errors import ErrorCode
from kronos_client.core.job_facts import list_jobs
from kronos_client.core.options import SAMPLE_COUNT
from kronos_client.core.stored import Stored
from kronos_client.feeds.feed import Feed
from kronos_client.mcp.forecasts import UP
from kronos_client.redis.connection import connect
from kronos_client.registry.model_registry import ModelRegistry
from kronos_model.bars.synthetic import candles as synthetic
from kronos_model.checkpoints.names import BUNDLED_FOLDER, FOR_TRYING
from tests.api_process import ApiUnderTest
from tests.integration.conftest import ROOT, StartWorker
from tests.waiting import WAIT_S, await_true

ALL, PREDICT, METRICS = "all-scopes-0123456789", "predict-0123456789", "metrics-0123456789"
KEYS = f"{ALL},{PREDICT}:predict,{METRICS}:metrics"
TINY = {"KRONOS_MODEL": "kronos-tiny", "KRONOS_TOKENIZER": "kronos-tiny", "KRONOS_MAX_CONTEXT": "512"}
TOOLS = {
    *("forecast_candles", "forecast_file", "get_forecast", "run_backtest", "get_backtest"),
    *("list_models", "list_workers", "explain_job", "list_feeds", "read_feed", "feed_scores"),
}
SMALL_CHARS = 3000


def hourly(bars: int) -> dict[str, list[Any]]:
    """Synthetic candles, one an hour without a break."""
    times = [(datetime(2024, 6, 3) + timedelta(hours=hour)).isoformat() for hour in range(bars)]
    columns = synthetic(seed=1, bars=bars).as_dict()
    return {name: list(values) for name, values in columns.items()} | {"timestamps": times}


Work = Callable[[Client], Awaitable[Any]]


class Reached:
    """A Redis and an API, and the SDK's client over either transport."""

    def __init__(self, redis: LocalRedis, folder: Path, **settings: str) -> None:
        self.redis, self.folder = redis, folder
        self.settings = settings
        settings = settings | {"KRONOS_API_MCP": "true", "KRONOS_API_KEYS": KEYS}
        self.api = ApiUnderTest(redis.url, folder / "api.log", settings)

    def http(self, work: Work, key: str = ALL) -> Any:
        async def main() -> Any:
            headers = {"Authorization": f"Bearer {key}"}
            async with (
                httpx2.AsyncClient(headers=headers, timeout=WAIT_S) as http,
                Client(streamable_http_client(f"{self.api.url}mcp", http_client=http)) as client,
            ):
                return await work(client)

        return asyncio.run(main())

    def stdio(self, work: Work) -> Any:
        async def main() -> Any:
            environment = os.environ | self.settings
            environment |= {"KRONOS_REDIS_URL": self.redis.url, "PYTHONPATH": str(ROOT)}
            command = StdioServerParameters(
                command=sys.executable,
                args=["-m", "tests.fork_server", "kronos_cli", "mcp"],
                env=environment,
                cwd=self.folder,
            )
            async with Client(command) as client:
                return await work(client)

        return asyncio.run(main())


class Stack(Reached):
    """With a worker for forecasts, one for backtests, and a folder of candles."""

    def __init__(self, redis: LocalRedis, start: StartWorker, folder: Path) -> None:
        self.data = folder / "data"
        self.data.mkdir()
        bars = hourly(200)
        with (self.data / "NORTH.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(bars)
            writer.writerows(zip(*bars.values(), strict=True))
        self.bars = {name: values[-60:] for name, values in bars.items()}
        self.secret = folder / "secret.csv"
        self.secret.write_text((self.data / "NORTH.csv").read_text())
        own = {"KRONOS_DATA_FOLDER": str(self.data), "KRONOS_MODEL_FOLDER": str(folder / "models")}
        start(**own, **TINY).wait_until_ready()
        start(**own, KRONOS_ROLE="finetune").wait_until_ready()
        super().__init__(redis, folder, **own)


@pytest.fixture(scope="module")
def stack(
    redis: LocalRedis, start_worker: StartWorker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    stack = Stack(redis, start_worker, tmp_path_factory.mktemp("mcp"))
    yield stack
    stack.api.stop()


@pytest.fixture(params=["http", "stdio"])
def transport(request: pytest.FixtureRequest, stack: Stack) -> tuple[Callable[[Work], Any], str]:
    """How to reach the tools, and the name there of the file of candles."""
    return (stack.http, "NORTH.csv") if request.param == "http" else (stack.stdio, "data/NORTH.csv")


async def call(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """What a tool answers; the same as its text, which is small."""
    answer = await client.call_tool(tool, arguments)
    text = answer.content[0].text
    assert not answer.is_error, text
    assert len(text) < SMALL_CHARS
    assert json.loads(text) == answer.structured_content
    links = [part.uri for part in answer.content[1:]]
    assert links == [
        answer.structured_content[name] for name in ("table", "report") if name in json.loads(text)
    ]
    return answer.structured_content


async def refused(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """The error that a tool ends with."""
    answer = await client.call_tool(tool, arguments)
    assert answer.is_error
    return json.loads(answer.content[0].text)


def test_candles_and_a_file_have_the_same_forecast_with_its_caution_and_its_table(stack, transport):
    use, file = transport
    asked = {"pred_len": 5, "options": {"sample_count": 25, "seed": 7}}
    event = "high>=last+1% by 3"

    async def work(client: Client) -> None:
        tools = (await client.list_tools()).tools
        assert {tool.name for tool in tools} >= TOOLS
        assert all(tool.description for tool in tools)
        says_so = [tool.name for tool in tools if f"by default {SAMPLE_COUNT}" in str(tool.input_schema)]
        assert says_so == ["forecast_candles", "forecast_file"]
        of_default = await call(client, "forecast_file", file=file, pred_len=1)
        assert f"{SAMPLE_COUNT} paths" in of_default["series"][0]["chances"][0]["in_words"]
        of_file = await call(client, "forecast_file", file=file, **asked)
        (series,) = of_file["series"]
        assert FOR_TRYING in of_file["caution"]
        assert of_file["caution"] in of_file["warnings"]
        assert [chance["event"] for chance in series["chances"]] == [UP]
        (content,) = (await client.read_resource(of_file["table"])).contents
        rows = list(csv.DictReader(content.text.splitlines()))
        assert len(rows) == series["bars"] == 5
        assert float(rows[-1]["close_q0.1"]) == series["close_at_end"]["q0.1"]
        of_candles = await call(client, "forecast_candles", candles=stack.bars, **asked)
        assert of_candles["series"][0]["last"] == series["last"]
        again = await call(client, "get_forecast", job_id=of_file["job_id"])
        assert again["series"] == of_file["series"]
        of_event = await call(
            client,
            "forecast_candles",
            candles=stack.bars,
            pred_len=5,
            options=asked["options"] | {"events": [event]},
        )
        assert [chance["event"] for chance in of_event["series"][0]["chances"]] == [event]

    use(work)


def test_a_backtest_answers_its_job_at_once_and_its_verdict_later(transport):
    use, file = transport

    async def work(client: Client) -> None:
        options = {"horizon": 3, "windows": 2, "lookback": 32, "samples": 2}
        sent = await call(client, "run_backtest", files=[file], **options)
        assert sent["state"] == "queued"
        job_id = sent["job_id"]
        found = await call(client, "explain_job", job_id=job_id)
        assert found["next"]
        async with asyncio.timeout(WAIT_S):
            while (read := await call(client, "get_backtest", job_id=job_id))["state"] != "done":
                await asyncio.sleep(0.2)
        assert read["windows"] == 2
        (lines,) = read["verdict"].values()
        assert any(FOR_TRYING in line for line in lines)
        (content,) = (await client.read_resource(read["report"])).contents
        assert json.loads(content.text)["num_windows"] == 2
        of_another_kind = await refused(client, "get_forecast", job_id=job_id)
        assert of_another_kind["code"] == "LOST"

    use(work)


def test_models_and_workers_are_listed(stack, transport):
    use, _ = transport
    models = ModelRegistry(Path(stack.settings["KRONOS_MODEL_FOLDER"]))
    metadata = {"max_context": 512, "parent": {"model": "kronos-tiny"}}
    tiny = BUNDLED_FOLDER / "kronos-tiny"
    models.register(tiny, "mine", job_id="m", fingerprint="f", metadata=metadata)

    async def work(client: Client) -> None:
        models = await call(client, "list_models")
        (tiny,) = [model for model in models["models"] if model["id"] == "kronos-tiny"]
        assert FOR_TRYING in tiny["caution"]
        (mine,) = [model for model in models["models"] if model["id"] == "mine@1"]
        assert FOR_TRYING in mine["caution"]
        workers = await call(client, "list_workers")
        assert {worker["role"] for worker in workers["workers"]} == {"forecast", "finetune"}

    use(work)


def test_a_feed_is_read_by_those_who_may_see_it(stack, transport):
    use, _ = transport
    bars = pd.DataFrame(stack.bars).rename(columns={"timestamps": "ds"}).assign(unique_id="NORTH")
    options = {"pred_len": 2, "sample_count": 2, "events": [UP]}
    with Feed.open("universe", url=stack.redis.url, **options) as feed:
        feed.append(bars)
        await_true(lambda: feed.forecast("NORTH"), "a worker forecasts it")

    async def work(client: Client) -> None:
        assert (await call(client, "list_feeds"))["feeds"] == ["universe"]
        found = await call(client, "read_feed", name="universe", rank=UP)
        assert (found["total"], found["rows"][0]["id"]) == (1, "NORTH")
        assert await call(client, "feed_scores", name="universe", by="horizon") == {"rows": [], "total": 0}
        assert (await refused(client, "read_feed", name="none"))["code"] == "FEED_NOT_FOUND"

    async def of_another_key(client: Client) -> None:
        none = await call(client, "list_feeds")
        assert (none["feeds"], none["total"]) == ([], 0)
        assert (await refused(client, "read_feed", name="universe"))["code"] == "FEED_NOT_FOUND"

    use(work)
    stack.http(of_another_key, PREDICT)


def test_errors_have_a_code_and_say_what_to_do(stack, transport):
    use, file = transport

    async def work(client: Client) -> None:
        wrong = stack.bars | {"high": [low - 1 for low in stack.bars["low"]]}
        error = await refused(client, "forecast_candles", candles=wrong, pred_len=3)
        assert error["code"] == "HIGH_BELOW_LOW"
        error = await refused(client, "forecast_file", file=file, pred_len=0)
        assert (error["code"], error["field"]) == ("BAD_VALUE", "pred_len")
        error = await refused(client, "forecast_file", pred_len=3)
        assert (error["code"], error["field"]) == ("MISSING_FIELD", "file")
        error = await refused(client, "forecast_file", file=file, pred_len=3, options={"sample_count": 10**6})
        assert error["code"] == "LIMIT_EXCEEDED"
        error = await refused(client, "forecast_file", file="none.csv", pred_len=3)
        assert error["message"]
        error = await refused(client, "forecast_file", file=file, pred_len=3, options={"paths": True})
        assert (error["code"], error["field"]) == ("UNKNOWN_FIELD", "options.paths")
        error = await refused(client, "forecast_file", file=file, pred_len=3, events=[UP])
        assert (error["code"], error["field"]) == ("UNKNOWN_FIELD", "events")
        error = await refused(
            client, "forecast_file", file=file, pred_len=3, options={"events": ["close>>last"]}
        )
        assert error["code"] == "BAD_VALUE"
        assert (await refused(client, "no_such_tool"))["code"] == "INVALID_INPUT"
        assert (await refused(client, "get_forecast", job_id="never-sent"))["code"] == "LOST"
        with pytest.raises(MCPError, match="LOST"):
            await client.read_resource("kronos://forecasts/never-sent/table")

    use(work)


def test_over_http_only_files_of_the_data_folder_are_read(stack):
    async def work(client: Client) -> None:
        assert (await call(client, "list_files"))["files"] == ["NORTH.csv"]
        for name in (str(stack.secret), "../secret.csv", "NORTH.csv/../../secret.csv"):
            assert (await refused(client, "forecast_file", file=name, pred_len=3))["code"] == "NOT_FOUND"
            error = await refused(client, "run_backtest", files=[name])
            assert (error["code"], "list_files" in error["message"]) == ("NOT_FOUND", True)

    stack.http(work)


def test_over_http_a_key_does_what_its_scopes_allow(stack):
    async def predicts(client: Client) -> str:
        error = await refused(client, "run_backtest", files=["NORTH.csv"])
        assert (error["code"], error["details"]["scope"]) == ("FORBIDDEN", "train")
        return (
            await call(client, "forecast_file", file="NORTH.csv", pred_len=2, options={"sample_count": 2})
        )["table"]

    table = stack.http(predicts, PREDICT)

    async def measures(client: Client) -> None:
        await call(client, "list_workers")
        for tool, arguments in (("forecast_file", {"file": "NORTH.csv", "pred_len": 2}), ("list_files", {})):
            assert (await refused(client, tool, **arguments))["code"] == "FORBIDDEN"
        with pytest.raises(MCPError, match="FORBIDDEN"):
            await client.read_resource(table)

    stack.http(measures, METRICS)


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({}, 401, "UNAUTHORIZED"),
        ({"Authorization": "Bearer wrong-0123456789ab"}, 401, "UNAUTHORIZED"),
        ({"Authorization": f"Bearer {ALL}", "Origin": "https://evil.example"}, 403, "ORIGIN_NOT_ALLOWED"),
        ({"Authorization": f"Bearer {ALL}", "Origin": "null"}, 403, "ORIGIN_NOT_ALLOWED"),
    ],
)
def test_over_http_strangers_and_other_pages_are_refused(stack, headers, status, code):
    answer = httpx2.post(f"{stack.api.url}mcp", json={}, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (status, code)


def test_over_http_the_limits_are_those_of_every_request(stack):
    """The size is refused before the body is read."""
    connection = HTTPConnection(urlsplit(stack.api.url).netloc, timeout=WAIT_S)
    connection.putrequest("POST", "/mcp")
    for name, value in {"Authorization": f"Bearer {ALL}", "Content-Length": str(10**12)}.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    assert (answer.status, json.loads(answer.read())["code"]) == (413, "BODY_TOO_LARGE")
    connection.close()


@pytest.mark.parametrize("transport", ["http", "stdio"])
def test_a_call_that_is_given_up_cancels_its_forecast(transport, tmp_path):
    """No worker runs, so that the job waits."""
    bars = hourly(40)

    async def work(client: Client) -> None:
        with connect(redis.url) as connection:

            def jobs() -> list[Stored]:
                return [job.stored for job in list_jobs(connection, "forecast", 9)[0]]

            asked = asyncio.create_task(
                client.call_tool("forecast_candles", {"candles": bars, "pred_len": 3})
            )
            await until(lambda: len(jobs()) == 1)
            assert not jobs()[0].has_ended
            asked.cancel()
            await until(lambda: jobs()[0].has_ended)
            assert jobs()[0].value.code == ErrorCode.CANCELLED

    with LocalRedis() as redis:
        reached = Reached(redis, tmp_path)
        try:
            getattr(reached, transport)(work)
        finally:
            reached.api.stop()


async def until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not await asyncio.to_thread(is_true):
            await asyncio.sleep(0.05)


def test_a_job_that_takes_longer_is_answered_with_its_id(tmp_path):
    """No worker runs, so that it takes for ever; the answer says so."""
    bars = hourly(40)

    async def work(client: Client) -> None:
        answer = await call(client, "forecast_candles", candles=bars, pred_len=3)
        assert answer["state"] == "queued"
        assert "kronos worker" in answer["waiting"]
        again = await call(client, "get_forecast", job_id=answer["job_id"])
        assert again["state"] == "queued"
        with pytest.raises(MCPError, match="TIMEOUT"):
            await client.read_resource(f"kronos://forecasts/{answer['job_id']}/table")

    with LocalRedis() as redis:
        reached = Reached(redis, tmp_path, KRONOS_API_WAIT_S="0.5")
        try:
            reached.http(work)
        finally:
            reached.api.stop()


WITHOUT = "import sys; sys.modules['mcp'] = None\n"
USED = """
from api_stub.main import create_app
from api_stub.settings import ApiSettings
create_app(ApiSettings())
from kronos_cli.main import cli
import kronos_cli.command_list, kronos_client
print([name for name in sys.modules if name.partition(".")[0] in ("mcp", "mcp_types")])
"""


@pytest.mark.parametrize(
    ("code", "environment", "expected"),
    [
        ("from kronos_cli.main import cli; cli(['mcp'])", {}, ".[cli,mcp]"),
        (
            "from api_stub.__main__ import main; main()",
            {
                "KRONOS_API_MCP": "true",
                "KRONOS_REDIS_URL": "redis://127.0.0.1:1/0",
            },  # this machine may have one
            "kronos-worker[api,mcp]",
        ),
    ],
)
def test_without_the_package_one_line_names_it(code, environment, expected):
    done = python(WITHOUT + code, **environment)
    assert done.returncode == 1
    assert expected in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_nothing_of_it_is_imported_where_it_is_not_used():
    assert python("import sys" + USED).stdout == "[]\n"


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | environment, cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
