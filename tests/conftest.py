"""Fixtures that any test may use."""

import functools
import gc
import inspect
import os
from collections.abc import Iterator
from typing import NoReturn

import pytest
from redis import Redis

from kronos_cli.stack.local_redis import LocalRedis
from kronos_client.redis.connection import connect
from kronos_model.processes.exiting import collect_nothing_at_exit

# The tests' models are tiny, and OpenMP's threads wait for each other by spinning: on a busy machine two
# take many times as long as one. Child processes inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# What is imported and collected stays to the end; to look through it for garbage takes as long as to make it.
gc.disable()
collect_nothing_at_exit()


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("numprocesses", None):  # the one that others collect for
        gc.enable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--faults", action="store_true", help="faults last as long as in service (tests/faults; 40 minutes)"
    )


@pytest.fixture(scope="module")
def redis_server() -> Iterator[LocalRedis]:
    """A real Redis of the module's own."""
    with LocalRedis() as server:
        yield server


@pytest.fixture
def redis(redis_server: LocalRedis) -> Iterator[Redis]:
    """A connection to it; it is empty at the start of each test."""
    with connect(redis_server.url) as client:
        client.flushall()
        yield client


@pytest.fixture
def no_cuda_calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Make every call into CUDA raise, and fail the test if there was one whose error was swallowed.

    Gives the list of the calls made so far.
    """
    import torch

    called: list[str] = []

    def refuse(name: str, *_args: object, **_kwargs: object) -> NoReturn:
        called.append(name)
        raise AssertionError(f"{name} was called on a path that must not touch CUDA")

    for module, prefix in ((torch.cuda, ""), (torch.accelerator, ""), (torch._C, "_cuda_")):
        for name, value in list(vars(module).items()):
            refusal = functools.partial(refuse, f"{module.__name__}.{name}")
            if name.startswith(prefix) and inspect.isroutine(value):
                monkeypatch.setattr(module, name, refusal)
            elif inspect.isclass(value) and value.__module__.startswith("torch.cuda."):
                # The class itself stays, for the isinstance checks that PyTorch makes on the CPU too.
                for constructor in {"__new__", "__init__"} & vars(value).keys():
                    monkeypatch.setattr(value, constructor, refusal)
    yield called
    assert called == []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--faults"):
        for item in items:
            if item.get_closest_marker("at_length"):
                item.add_marker(pytest.mark.skip(reason="takes long: run it by ./kronos test --faults"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The figures that tests noted. Here: who runs them side by side reads no folder's own file."""
    for report in terminalreporter.stats.get("passed", []) + terminalreporter.stats.get("failed", []):
        for name, value in report.user_properties:
            terminalreporter.write_line(f"{report.nodeid.partition('::')[2]}: {name} {value}")
