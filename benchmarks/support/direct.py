"""The engine alone, in a process of its own: a line on standard input is one run, its seconds the answer."""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

from kronos_model.processes.environment import PACKAGE_ROOT

MAX_CONTEXT: Final = 512
MAX_SLOTS: Final = 64


class DirectEngine:
    """Runs the same series as the service, without a service."""

    def __init__(self, model: str, tokenizer: str, *, jobs: int, lookback: int, horizon: int) -> None:
        sizes = {"--jobs": jobs, "--lookback": lookback, "--horizon": horizon}
        arguments = [text for name, value in sizes.items() for text in (name, str(value))]
        self._process = subprocess.Popen(
            [sys.executable, "-m", __spec__.name, "--model", model, "--tokenizer", tokenizer, *arguments],
            cwd=PACKAGE_ROOT,
            env=os.environ | {"OMP_NUM_THREADS": str(len(os.sched_getaffinity(0)))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        self.run_s()  # loads and warms up
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()

    def run_s(self) -> float:
        """Seconds from submitting all series at once to the last one's end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--tokenizer", required=True)
    for name in ("--jobs", "--lookback", "--horizon"):
        parser.add_argument(name, type=int, required=True)
    given = parser.parse_args(arguments)

    from benchmarks.support.workload import series_request
    from kronos_model.engine.build import build_engine
    from kronos_model.model_pair import load_pair

    pair = load_pair(given.model, given.tokenizer)
    engine = build_engine(
        pair.model,
        pair.tokenizer,
        max_context=MAX_CONTEXT,
        max_slots=MAX_SLOTS,
    )
    requests = [series_request(seed, given.lookback, given.horizon) for seed in range(given.jobs)]
    for _ in sys.stdin:
        start = time.perf_counter()
        for request in requests:
            engine.submit(request)
        while engine.has_work:
            engine.step()
        print(time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    main()
