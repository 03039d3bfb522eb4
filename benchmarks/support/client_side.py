"""What apps pay for the client. Each function is called in a fresh process."""

import time
from collections.abc import Callable
from typing import Any, Final

import pandas as pd

from benchmarks.support.observers import CallRecorder, ask
from kronos_client import ForecastClient
from kronos_model.bars.synthetic import candles

BARS, HORIZON = 400, 24
WAIT_S: Final = 60.0

Calls = list[dict[str, list[str]]]
"""The functions by thread, in the client's process and in the worker's."""


def frame() -> pd.DataFrame:
    """Hourly bars: six columns, and an index of times."""
    return pd.DataFrame(candles(1, BARS).columns, index=pd.date_range("2025-01-06", periods=BARS, freq="h"))


def arrays() -> dict[str, Any]:
    """The same as arrays."""
    bars = frame()
    return {"timestamps": bars.index.to_numpy(), **{name: bars[name].to_numpy() for name in bars}}


def submit_cpu_ms(url: str, make_candles: Callable[[], Any], num_jobs: int) -> float:
    """CPU milliseconds of one ``submit``, all threads together, after some that warm up."""
    given = make_candles()
    with ForecastClient(url) as client:
        for _ in range(num_jobs // 10):
            client.submit(given, pred_len=HORIZON)
        start = time.process_time()
        for _ in range(num_jobs):
            client.submit(given, pred_len=HORIZON)
        return (time.process_time() - start) / num_jobs * 1000


def calls_of_jobs(url: str, address: str, seconds: float) -> tuple[Calls, Calls]:
    """What runs for one job, and during some seconds of jobs; ``address`` is that of the worker's observer.

    Of five single jobs, the one with the fewest functions counts: periodic work runs during the others.
    """
    recorder, given = CallRecorder(), frame()  # before the client's threads start
    with ForecastClient(url) as client:

        def observed(seconds: float) -> Calls:
            ask(address, "start")
            recorder.start()
            end = time.monotonic() + seconds
            client.submit(given, pred_len=HORIZON).wait(WAIT_S)
            while time.monotonic() < end:
                client.submit(given, pred_len=HORIZON).wait(WAIT_S)
            time.sleep(0.1)  # the worker ends what follows the outcome
            return [recorder.stop(), ask(address, "stop")]

        observed(2.0)
        single = [observed(0.0) for _ in range(5)]
        return min(single, key=_num_functions), observed(seconds)


def _num_functions(processes: Calls) -> int:
    return sum(len(functions) for threads in processes for functions in threads.values())
