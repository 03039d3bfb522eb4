"""Jobs in an engine thread, for tests that wait for them."""

from collections.abc import Callable, Sequence
from typing import Any

from kronos_model.engine.generation import SeriesRequest
from kronos_model.engine.reports import EngineLoad
from tests.waiting import await_true
from worker.inference.engine_thread import EngineThread, JobRun, ModelEngine


def added(engine_thread: EngineThread, model: ModelEngine) -> ModelEngine:
    """The model, after the engine thread has got it."""
    engine_thread.add(model)
    return model


def submit(
    engine_thread: EngineThread,
    job_id: str,
    requests: Sequence[SeriesRequest],
    model: ModelEngine,
    on_end: Callable[[], object] = lambda: None,
) -> JobRun:
    """Submit one job."""
    run = JobRun(job_id, requests, model, on_end)
    engine_thread.submit([run])
    return run


def ended(engine_thread: EngineThread, run: JobRun) -> Any:
    """The generations of a job, after it has ended. Raises its error."""
    await_true(lambda: engine_thread.has_ended(run), "the end of the job")
    return result_of(run)


def result_of(run: JobRun) -> Any:
    """The generations of a job that has ended. Raises its error."""
    assert run.is_done
    if run.error is not None:
        raise run.error
    return run.generations


def load_of(engine_thread: EngineThread) -> EngineLoad:
    """The load of all engines together."""
    loads = engine_thread.loads.values()
    return EngineLoad(*(sum(getattr(one, name) for one in loads) for name in ("running", "waiting", "slots")))
