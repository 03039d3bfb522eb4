"""Each code block of README and docs runs here or elsewhere, or says in a comment above it why it does not.

All commands are read by their own parser. Those of ``kronos`` run, too, with a Redis and without a worker,
except those in ``NOT_RUN_HERE``.
"""

import re
import shlex
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

import click
import pandas as pd
import pytest
import yaml
from click.testing import CliRunner
from redis import Redis

import kronos_client
from kronos_cli.commands import backtest, forecast
from kronos_cli.main import cli
from kronos_cli.settings import get_settings
from kronos_cli.stack.local_redis import LocalRedis
from kronos_client.backtesting import reporting
from kronos_client.testing import FakeForecastClient, fake_worker
from kronos_model.bars.synthetic import candles
from kronos_model.finetuning.config import parse_config
from tests.all_settings import AllSettings
from tests.doc_blocks import PAGES, ROOT, Block, blocks_of, commands_of
from tests.kronos_model.finetuning.tiny_runs import tiny_config, write_candles

BLOCKS = [block for page in PAGES for block in blocks_of(page)]
RECIPES = [block.page for block in BLOCKS if block.page.startswith("docs/recipes/")]
RUN_ELSEWHERE = {
    "docs/use/clients.md": "tests/integration/test_clients_page.py",  # all that have a title
    "docs/use/http.md": "tests/api_stub/test_documented_requests.py",  # all of curl
    **dict.fromkeys(RECIPES, "tests/integration/test_recipes.py"),  # all that have a title
}
OF_TESTS = {"FAULT_EXAMPLES", "FAULT_CASE", "KRONOS_SOAK_S"}
OF_LAUNCHER = {"test": {"--gpu", "--faults"}, "setup": {"--dev"}}
"""Options of the launcher's own commands."""
NOT_RUN_HERE = {
    "setup": "tests/test_launcher.py",
    "test": "it is what runs here",
    "demo": "tests/integration/test_one_machine.py",
    "up": "tests/integration/test_one_machine.py",
    "status": "tests/kronos_cli/commands/test_status.py",
    "worker": "tests/integration/test_workers.py",
    "api": "tests/integration/test_servers.py",
    "flower": "tests/integration/test_servers.py",
    "feed follow": "tests/kronos_cli/commands/test_feed.py",
    "feed watch": "tests/kronos_cli/commands/test_feed.py",
    "replay": "tests/kronos_cli/commands/test_replay.py",
    "calibrate": "tests/kronos_cli/commands/test_calibrate.py",
    "models register": "tests/kronos_cli/commands/test_models.py",
    "models promote": "tests/kronos_cli/commands/test_models.py",
    "models rollback": "tests/kronos_cli/commands/test_models.py",
    "finetune": "tests/kronos_cli/commands/test_finetune.py",
}
"""Commands that run until they are stopped, take long, or need what their own tests make: what runs them."""


def kind_of(block: Block) -> str:
    """How a block is tried: "python", "yaml", "shell", "elsewhere" or "not"."""
    if block.reason is not None or block.language == "text":
        return "not"
    if (block.page in RUN_ELSEWHERE and block.title) or (block.page, block.language) == (
        "docs/use/http.md",
        "bash",
    ):
        return "elsewhere"
    return {"": "shell", "bash": "shell", "sh": "shell"}.get(block.language, block.language)


def of_kind(kind: str) -> list[Any]:
    return [pytest.param(block, id=str(block)) for block in BLOCKS if kind_of(block) == kind]


def test_every_block_runs_or_says_why_not():
    for page in PAGES:
        fences = re.findall(r"^ *```", page.read_text(), re.MULTILINE)
        assert len(fences) == 2 * len(blocks_of(page)), f"{page.name}: a block that is not read as one"
        marks = re.findall(r"^ *<!-- not run: ", page.read_text(), re.MULTILINE)
        num_marked = sum(block.reason is not None for block in blocks_of(page))
        assert len(marks) == num_marked, f"{page.name}: a mark that is not in the line above its block"
    for block in BLOCKS:
        kinds = ("python", "yaml", "shell", "elsewhere", "not")
        assert kind_of(block) in kinds, f"{block}: nothing runs it; write <!-- not run: REASON --> above it"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("apt-get install redis-server", "nothing runs or reads"),
        ("./kronos forecast FILE --quantile 0.1", "No such option '--quantile'"),
        ("./kronos forecast FILE --samples many", "'many' is not a valid integer"),
        ("kronos frobnicate", "No such command 'frobnicate'"),
        ("kronos models demote mine", "No such command 'demote'"),
        ("KRONOS_REDIS=redis://… ./kronos status", "no setting KRONOS_REDIS"),
        ("./kronos test --all", "test has no"),
        ("make everything", "make has no"),
    ],
)
def test_a_command_that_cannot_be_given_is_refused(line: str, reason: str):
    with pytest.raises((AssertionError, click.UsageError, pytest.fail.Exception)) as refused:
        check_command(line)
    assert reason in str(getattr(refused.value, "message", refused.value))


@pytest.fixture
def any_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files and folders that commands name exist."""
    monkeypatch.setattr(click.Path, "convert", lambda self, value, *_: Path(value))


def check_command(line: str) -> None:
    """Raise an error for a command that nothing here can read, or that its own parser refuses."""
    names, words = words_of(line)
    for name in names:
        is_setting = name.removeprefix("KRONOS_").lower() in AllSettings.model_fields
        assert is_setting or name in OF_TESTS, f"no setting {name}"
    match words:
        case []:
            return
        case ["./kronos" | "kronos", ("test" | "setup") as command, *rest]:
            options = {word for word in rest if word.startswith("--")}
            assert options <= OF_LAUNCHER[command], f"{command} has no {options}"
        case ["./kronos" | "kronos", command, *rest]:
            read(cli, command, rest)
        case ["pip", "install", "-r", file]:
            assert (ROOT / file).is_file()
        case ["pip", "install", pinned, "--index-url", _]:
            assert pinned in (ROOT / "requirements.txt").read_text().splitlines()
        case ["make", *targets]:
            known = set(re.findall(r"^([\w.-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
            assert set(targets) <= known, f"make has no {set(targets) - known}"
        case _:
            pytest.fail(f"nothing runs or reads {line!r}; write <!-- not run: REASON --> above the block")


def words_of(line: str) -> tuple[list[str], list[str]]:
    """The names of the variables that a line sets, and its command's words."""
    line = re.sub(r'^eval "\$\((.*)\)"$', r"\1", line)
    words = shlex.split(line.partition(" > ")[0].removeprefix("export "))
    names = [*takewhile(re.compile(r"[A-Z_]+=").match, words)]
    return [name.partition("=")[0] for name in names], words[len(names) :]


def read(group: click.Group, name: str, words: list[str]) -> None:
    """Read a command's words as the command line does. Raises UsageError."""
    with click.Context(group) as context:
        _, command, rest = group.resolve_command(context, [name, *words])
        assert command is not None
        if isinstance(command, click.Group) and rest:
            read(command, rest[0], rest[1:])
        else:
            command.make_context(name, rest)


@pytest.mark.parametrize("block", of_kind("shell"))
def test_commands_can_be_given_as_written(block: Block, any_path):
    for line in commands_of(block):
        check_command(line)


@pytest.fixture
def service(
    names: dict[str, Any], redis: Redis, redis_server: LocalRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Redis with a feed, files of candles under every name, and forecasts that need no worker."""
    monkeypatch.setenv("KRONOS_REDIS_URL", redis_server.url)
    monkeypatch.setenv("KRONOS_MODEL_FOLDER", "models")
    get_settings.cache_clear()
    for module in (backtest, forecast):
        monkeypatch.setattr(module, "ForecastClient", lambda **_: names["client"])
    frame = pd.read_csv("prices/synthetic-0.csv")
    for path in Path("prices").iterdir():
        path.write_text(path.read_text().replace("2025-", "2024-"))  # before the end that a page names
    for file in ("prices.csv", "AAPL.csv", "candles/AAPL.csv"):
        Path(file).parent.mkdir(exist_ok=True)
        frame.to_csv(file, index=False)
    frame.to_parquet("MSFT.parquet")
    frame.assign(unique_id="AAPL").to_parquet("long.parquet")
    CliRunner().invoke(cli, ["feed", "create", "binance", "--event", "close>last at end"])


@pytest.mark.parametrize("block", of_kind("shell"))
def test_commands_run(block: Block, request: pytest.FixtureRequest):
    for line in commands_of(block):
        _, words = words_of(line)
        if words[:1] not in (["kronos"], ["./kronos"]):
            continue  # make, pip and variables
        ran_by = NOT_RUN_HERE.get(" ".join(words[1:3])) or NOT_RUN_HERE.get(words[1])
        if ran_by is None:
            request.getfixturevalue("service")
            outcome = CliRunner().invoke(cli, words[1:], input="y\n")
            assert outcome.exit_code == 0, f"{line}: {outcome.output}"
        else:
            assert (ROOT / ran_by).is_file() or " " in ran_by


def test_commands_within_a_line_have_the_options_that_they_name(any_path):
    """Values may be left out."""
    for page in PAGES:
        spans = re.findall(r"`((?:[A-Z_]+=\S+ )*(?:\./)?kronos [a-z][^`\n]*)`", page.read_text())
        for span in spans if page.name != "CHANGELOG.md" else []:
            with suppress(click.BadParameter, click.BadOptionUsage, click.exceptions.Exit):
                check_command(span)


@pytest.mark.parametrize("block", of_kind("yaml"))
def test_a_config_is_accepted(block: Block):
    parse_config({"data": {"path": "candles"}} | yaml.safe_load(block.text))


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names and files that blocks take for granted; clients need no service."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(reporting, "write_page", lambda *_: None)  # its charts take seconds
    monkeypatch.setattr(kronos_client, "ForecastClient", lambda *_: FakeForecastClient(), raising=False)
    data, stage = write_candles(Path("prices"), num_bars=700), {"epochs": 1, "windows_per_epoch": 4}
    config = tiny_config(data, tokenizer=stage, predictor=stage, evaluation={"windows": 4})
    Path("finetune.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json", exclude_unset=True)))
    client, held = FakeForecastClient(), {"state": "ready", "revision": None, "max_context": 512}
    monkeypatch.setattr(client, "close", lambda: None)  # of one command: another follows
    held |= dict.fromkeys(("jobs", "slots", "running", "waiting"), 0)
    models = tuple({"id": name, **held} for name in ("mine@3", "mine@4"))
    client.live_workers = [fake_worker(models=models), fake_worker("cpu.finetune")]
    df = pd.DataFrame(candles(seed=1, bars=120).as_dict())
    times = pd.Series(pd.date_range("2024-01-01", periods=168, freq="D"))
    bars = df.rename(columns={"timestamps": "ds"}).assign(unique_id="AAPL")
    return {
        "client": client, "df": df, "df_a": df, "df_b": df, "bars": bars, "values": [1.0, 2.0],
        "config": "finetune.yaml", "x_timestamp": times[:120],
        "y_timestamp": times[120:].reset_index(drop=True),
    }  # fmt: skip


@pytest.mark.parametrize("block", of_kind("python"))
def test_python_runs(block: Block, names: dict[str, Any]):
    exec(compile(block.text, str(block), "exec"), names)  # noqa: S102 - it is our own text
