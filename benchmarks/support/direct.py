"""The engine alone in a separate process. Each message runs all series once; the event has the seconds."""

import argparse
import os
import time
from collections.abc import Sequence
from typing import Final, Self

from kronos_model.processes.environment import module_command, own_environment
from kronos_model.processes.json_child import JsonChild, JsonParent

RUN_TIMEOUT_S: Final = 600.0
MAX_CONTEXT: Final = 512
MAX_SLOTS: Final = 64


class DirectEngine:
    """Runs the same series as the service, with the engine alone."""

    def __init__(self, model: str, tokenizer: str, *, jobs: int, lookback: int, horizon: int) -> None:
        sizes = {"--jobs": jobs, "--lookback": lookback, "--horizon": horizon}
        arguments = [text for name, value in sizes.items() for text in (name, str(value))]
        command = module_command(__spec__.name, "--model", model, "--tokenizer", tokenizer, *arguments)
        threads = str(len(os.sched_getaffinity(0)))
        self._child = JsonChild("engine", command, env=own_environment({"OMP_NUM_THREADS": threads}))

    def __enter__(self) -> Self:
        self.run_s()  # loads and warms up
        return self

    def __exit__(self, *_: object) -> None:
        self._child.end()

    def run_s(self) -> float:
        """Seconds from submitting all series at once to the end of the last one."""
        self._child.send({})
        event = self._child.next_event(RUN_TIMEOUT_S)
        if event is None:
            raise TimeoutError(f"the engine took longer than {RUN_TIMEOUT_S:g} s")
        return float(event["seconds"])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--tokenizer", required=True)
    for name in ("--jobs", "--lookback", "--horizon"):
        parser.add_argument(name, type=int, required=True)
    given = parser.parse_args(arguments)
    parent = JsonParent()

    from benchmarks.support.workload import series_request
    from kronos_model.engine.build import build_engine
    from kronos_model.model_pair import load_pair

    pair = load_pair(given.model, given.tokenizer)
    engine = build_engine(pair.model, pair.tokenizer, max_context=MAX_CONTEXT, max_slots=MAX_SLOTS)
    requests = [series_request(seed, given.lookback, given.horizon) for seed in range(given.jobs)]
    while True:
        parent.next_message()
        start = time.perf_counter()
        for request in requests:
            engine.submit(request)
        while engine.has_work:
            engine.step()
        parent.send("done", seconds=time.perf_counter() - start)


if __name__ == "__main__":
    main()
