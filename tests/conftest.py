"""Fixtures that any test may use."""

import functools
import gc
import inspect
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import HealthCheck, settings
from redis import Redis

from kronos_cli.stack.local_redis import LocalRedis
from kronos_client.core import forecast_request
from kronos_client.redis.connection import connect
from kronos_model.processes.children import collect_nothing_at_exit
from tests import fork_server, gpu

# The tests' models are tiny, and OpenMP's threads wait for each other by spinning: on a busy machine two
# take many times as long as one. Tests that need two let them sleep. Child processes inherit both.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# The kernels of the native engine are compiled once for all runs of a source. Workers that load them take a
# second longer to start, so only those in tests of that engine do.
os.environ.setdefault(
    "KRONOS_KERNEL_CACHE", str(Path(tempfile.gettempdir(), f"kronos-kernels-{os.getuid()}"))
)
os.environ.setdefault("KRONOS_ENGINE", "torch")

# nohup and a shell's "&" have what they start ignore these, and tests send them to children. Children inherit
# what is ignored, but not what is handled.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)

# What is imported and collected stays to the end; to look through it for garbage takes as long as to make it.
gc.disable()
collect_nothing_at_exit()
fork_server.fork_children()


# How long an example takes decides nothing. `--faults` draws many new ones, else all runs have the same few.
NO_REASON = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
settings.register_profile(
    "same", deadline=None, suppress_health_check=NO_REASON, derandomize=True, max_examples=50
)
settings.register_profile("new", settings.get_profile("same"), derandomize=False, max_examples=300)


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--gpu") and (reason := gpu.why_absent()):
        raise pytest.UsageError(f"there is no GPU to test on: {reason}")
    settings.load_profile("new" if config.getoption("--faults") else "same")
    if config.getoption("numprocesses", None):  # the one that others collect for
        gc.enable()
        fork_server.share()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--faults", action="store_true", help="faults last as long as in service (tests/faults; 40 minutes)"
    )
    parser.addoption("--gpu", action="store_true", help="only the tests of a GPU, and a table of its figures")


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


@pytest.fixture(scope="module")
def one_path() -> Iterator[None]:
    """Jobs of the tests' own client draw one path unless they say otherwise: more show nothing new."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forecast_request, "SAMPLE_COUNT", 1)
        yield


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


@pytest.fixture
def first_gpu() -> Iterator[str]:
    """The first GPU's name. The test fails if it computes nothing there."""
    with gpu.computing_on(0):
        yield "cuda:0"


@pytest.fixture
def second_gpu() -> Iterator[str]:
    """The second GPU's name. The test fails if it computes nothing there, or anything on the first."""
    if gpu.num_gpus() < 2:
        pytest.skip("this machine has one GPU: run it where there are two")
    with gpu.computing_on(1):
        yield "cuda:1"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Start slow files first, and skip what cannot run here, with the command that runs it.

    Faults at length took 40 minutes together, and a GPU's tests would prove nothing without one.
    """
    _slow_files_first(items)
    for item in items:
        # Both kinds run by a command of their own, which the skip names.
        if item.get_closest_marker("at_length") and not config.getoption("--faults"):
            item.add_marker(pytest.mark.skip(reason="takes long: ./kronos test --faults"))
        if item.get_closest_marker("gpu") and gpu.why_absent():
            item.add_marker(pytest.mark.skip(reason="no GPU: ./kronos test --gpu on a machine that has one"))
    if config.getoption("--gpu"):
        others = [item for item in items if not item.get_closest_marker("gpu")]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item.get_closest_marker("gpu")]


def _slow_files_first(items: list[pytest.Item]) -> None:
    """Sort the files by order.txt; those that are not in it follow.

    A slow file that starts late runs alone at the end. Files that mostly wait and files that mostly compute
    take turns in the list, so that the processors are busy from beginning to end.
    """
    folder = Path(__file__).parent
    ranks = {folder / name: rank for rank, name in enumerate((folder / "order.txt").read_text().split())}
    gone = [str(path) for path in ranks if not path.exists()]
    assert not gone, f"remove from tests/order.txt: {gone}"
    items.sort(key=lambda item: ranks.get(item.path, len(ranks)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """List what was skipped, by the reason, which says how to run it; and the figures that tests noted."""
    skipped: dict[str, list[str]] = {}
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        skipped.setdefault(reason, []).append(report.nodeid.partition("::")[0])
    if skipped:
        terminalreporter.section("not run here")
    for reason, files in sorted(skipped.items(), key=lambda item: -len(item[1])):
        first, *others = sorted(set(files))
        more = f" and {len(others)} more files" if others else ""
        terminalreporter.write_line(f"{len(files)} x {reason} ({first}{more})")
    ran = terminalreporter.stats.get("passed", []) + terminalreporter.stats.get("failed", [])
    if config.getoption("--gpu"):
        terminalreporter.section("GPU")
        for line in gpu.descriptions():
            terminalreporter.write_line(line)
    for report in ran:
        for name, value in report.user_properties:
            terminalreporter.write_line(f"{report.nodeid.partition('::')[2]}: {name} {value}")
    if config.getoption("--gpu"):
        num_bad = len(terminalreporter.stats.get("failed", [])) + len(terminalreporter.stats.get("error", []))
        verdict = f"{num_bad} tests failed: do not use it yet" if num_bad else "it gives the right numbers"
        terminalreporter.write_line(f"verdict: {verdict if ran else 'nothing was tested'}")
