"""A real worker with an observer: ``celery -A benchmarks.support.observed_worker worker``.

``BENCHMARK_OBSERVER`` is ``calls``, with the real engine, or ``stages``, with a model that costs nothing.
``BENCHMARK_SOCKET`` is the path at which the observer is asked.
"""

import os
from typing import Final

from benchmarks.support.observers import CallRecorder, StageClock, serve

STAGES: Final = {
    "take": ["worker.broker.consuming:MessageConsumer.take"],
    "parse": ["worker.broker.messages:read_message", "kronos_client.contract.jobs:read_job"],
    "prepare": [
        "kronos_client.contract.jobs:check_job",
        "kronos_client.contract.jobs:prepare",
        "worker.inference.executor:_request",
    ],
    "state": ["kronos_client.redis.job_store:JobStore.begin_all"],
    "events": ["celery.events.dispatcher:EventDispatcher.send"],
    "encode": [
        "kronos_client.contract.results:series_result",
        "worker.inference.executor:Computation.result",
        "kronos_client.core.stored:encode_state",
    ],
    "store": ["worker.broker.outcomes:Outcomes.flush"],
}
"""The functions in which each stage of a job's way begins."""

if os.environ["BENCHMARK_OBSERVER"] == "calls":
    recorder = CallRecorder()  # before any thread starts
    from worker.app import app

    serve(recorder, os.environ["BENCHMARK_SOCKET"])
else:
    from benchmarks.support.null_worker import app

    serve(StageClock(STAGES), os.environ["BENCHMARK_SOCKET"])

__all__ = ["app"]
