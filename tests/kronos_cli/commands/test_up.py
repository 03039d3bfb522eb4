"""The output of `kronos up`, and the reasons why it ends."""

import io
import socket
import sys

from click.testing import CliRunner
from rich.console import Console

from kronos_cli.commands.up import address_lines, address_variables, keep_running, prefixed_lines
from kronos_cli.main import cli
from kronos_cli.settings import CliSettings
from kronos_cli.stack.ports import free_port
from kronos_cli.stack.processes import ProcessStack
from kronos_cli.stack.restarts import MAX_RESTARTS, Restarts
from tests import ports


def test_a_log_line_is_printed_unchanged_after_its_workers_name():
    printed = io.StringIO()
    show = prefixed_lines(Console(file=printed), width=8)
    show("worker-2", "[red]x[/red]")
    show("redis", "y")
    assert printed.getvalue() == "worker-2 | [red]x[/red]\nredis    | y\n"


def test_a_port_in_use_is_refused_before_anything_starts(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        for option in ("--api-port", "--flower-port"):
            outcome = CliRunner().invoke(cli, ["up", "--data", str(tmp_path), option, str(port)])
            assert outcome.exit_code == 1
            assert f"port {port} of 127.0.0.1 cannot be used" in outcome.stderr
            assert f"give {option} another port" in outcome.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_apis_port_is_tried_at_the_apis_address(tmp_path, monkeypatch):
    port = ports.free_port()
    with socket.create_server(("127.0.0.2", port)):
        settings = CliSettings.load(api_host="127.0.0.2", api_port=port)
        monkeypatch.setattr("kronos_cli.commands.up.get_settings", lambda: settings)
        outcome = CliRunner().invoke(cli, ["up", "--data", str(tmp_path), "--api-port", str(port)])
        assert outcome.exit_code == 1
        assert f"port {port} of 127.0.0.2 cannot be used" in outcome.stderr
        assert free_port(port) == port
        assert free_port(port, "127.0.0.2") != port


def test_a_process_that_keeps_crashing_ends_the_stack():
    printed = io.StringIO()
    with ProcessStack() as stack:
        stack.start("worker", [sys.executable, "-c", "raise SystemExit(70)"])
        dead = keep_running(stack, Restarts(), Console(file=printed))
        assert (dead.name, dead.exit_status) == ("worker", 70)
    said = " ".join(printed.getvalue().split())
    assert said.count("worker ended with status 70; it is started again, at most 5 times in 10 minutes.") == 5
    assert MAX_RESTARTS == 5


def test_a_process_that_cannot_start_ends_the_stack_at_once():
    printed = io.StringIO()
    with ProcessStack() as stack:
        stack.start("worker", [sys.executable, "-c", "raise SystemExit(1)"])
        assert keep_running(stack, Restarts(), Console(file=printed)).exit_status == 1
    assert printed.getvalue() == ""


ADDRESSES = {
    "redis_url": "redis://127.0.0.1:6379/0",
    "model_folder": "/a folder/models",
    "api_url": "http://127.0.0.1:8000",
    "flower_url": "http://127.0.0.1:5555",
    "flower_user": "kronos",
    "flower_password": "drawn",
    "data_folder": "/a folder/data",
}


def test_each_address_says_what_is_there_and_how_to_sign_in():
    lines = address_lines(ADDRESSES, finetune=True, has_keys=False)
    assert [line.split()[0] for line in lines] == [
        "Redis:", "export", "export", "Candles", "Page:", "API:", "Flower:",
    ]  # fmt: skip
    assert lines[2] == "  export KRONOS_MODEL_FOLDER='/a folder/models'"
    assert lines[4:] == [
        "Page: http://127.0.0.1:8000 forecasts files, trains and compares models; it needs no key",
        "API: http://127.0.0.1:8000/docs describes it; it needs no key",
        "Flower: http://127.0.0.1:5555 shows jobs and workers; user kronos, password drawn",
    ]
    theirs = ADDRESSES | {"redis_url": None, "flower_password": None}
    page, _, flower = address_lines(theirs, finetune=False, has_keys=True)
    assert page.endswith("it needs a key of KRONOS_API_KEYS")
    assert flower.endswith("user kronos, password that of KRONOS_FLOWER_PASSWORD")


def test_scripts_get_what_is_there_as_variables():
    assert address_variables(ADDRESSES | {"redis_url": None})[0] == "KRONOS_MODEL_FOLDER='/a folder/models'"
    lines = address_variables(ADDRESSES)
    assert "KRONOS_API_URL=http://127.0.0.1:8000" in lines
    assert not [line for line in lines if line.startswith("KRONOS_FLOWER_USER=")], "commands would warn of it"
