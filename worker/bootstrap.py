"""Worker signals: resolve the device, pick the queue, load once, announce, stop cleanly.

With the threads and solo pools this process itself holds the model. With prefork each child does, and the
parent, which must not have run torch before it forks, asks a short-lived process for the device. So does a
finetuning worker, which never runs torch.
"""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, NoReturn, ParamSpec

import billiard
import click
from celery import concurrency, signals
from celery.concurrency.prefork import TaskPool as PreforkPool
from celery.concurrency.solo import TaskPool as SoloPool
from celery.concurrency.thread import TaskPool as ThreadsPool
from click.core import ParameterSource

from kronos_model.errors import KronosError
from worker.app import app
from worker.cores import num_cores
from worker.ending import EXIT_STATUS, end_child, end_worker
from worker.prefetch import Prefetch
from worker.routing import queue_for
from worker.settings import SettingsError, explain, get_settings
from worker.takeover import GpuTakeover
from worker.transport import DeliveryHeartbeat, outlive_connections, reuse_clients

log = logging.getLogger(__name__)

outlive_connections()
reuse_clients()
app.steps["consumer"].update({GpuTakeover, DeliveryHeartbeat, Prefetch})

P = ParamSpec("P")

# Not Celery's own defaults, which click calls a default map.
GIVEN = {ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT}

_num_children = 0  # of the prefork pool; 0 where this process holds the model itself
# A WorkerProcess or a FinetuneProcess; not annotated, since importing the first imports torch.
_process: Any = None


def current_process() -> Any:
    """This process's WorkerProcess or FinetuneProcess; there is one wherever tasks run."""
    if _process is None:
        raise RuntimeError("no model is loaded in this process; start it as a Celery worker")
    return _process


def _refuse(reason: str) -> NoReturn:
    """End this process with one line."""
    log.critical("%s", reason)
    raise SystemExit(1)


def or_exit(handler: Callable[P, None]) -> Callable[P, None]:
    """Of a signal without which the worker must not run: Celery logs a handler's exception and goes on."""

    @wraps(handler)
    def handle(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            handler(*args, **kwargs)
        except KronosError as error:
            _refuse(explain(error))
        except SettingsError as error:
            _refuse(str(error))
        except Exception:  # whatever it was, a worker without its model must not take jobs
            log.exception("the worker cannot start")
            raise SystemExit(1) from None

    return handle


def _start(node: str, end_process: Callable[[], None], num_processes: int = 1, index: int = 0) -> Any:
    """Resolve the device and load, in this process, which is one of several."""
    global _process
    from worker.process import WorkerProcess

    settings = get_settings()
    if settings.metrics_port is not None:
        # Each child has metrics of its own.
        settings = settings.model_copy(update={"metrics_port": settings.metrics_port + index})
    _process = WorkerProcess(settings, node, on_engine_death=end_process)
    _process.start(num_processes)
    return _process


def _start_finetuning(node: str) -> Any:
    """As ``_start`` for a finetuning worker: there is nothing to load."""
    global _process
    from worker.finetuning.process import FinetuneProcess

    _process = FinetuneProcess(get_settings(), node, _preflight())
    _process.start()
    return _process


def _preflight() -> dict[str, Any]:
    """The device that processes started from here will resolve, found without running torch here."""
    tried = subprocess.run(
        [sys.executable, "-m", "worker.preflight"],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        cwd=Path(__file__).parents[1],
    )
    if tried.returncode:
        _refuse("the device and the model could not be tried, see above")
    outcome = json.loads(tried.stdout)
    if "error" in outcome:
        _refuse(outcome["error"])
    return dict(outcome)


@signals.worker_init.connect
@or_exit
def choose_pool(sender: Any, **_: Any) -> None:
    """Threads unless the command line names a pool; as many jobs as that pool is good for.

    Not by ``worker_pool`` in the configuration: Celery 5.7 lets it override ``--pool prefork``. This signal
    comes just before Celery reads both attributes.
    """
    context = click.get_current_context(silent=True)

    def is_given(name: str) -> bool:
        return context is not None and context.get_parameter_source(name) in GIVEN

    if context is not None and not is_given("pool"):
        sender.pool_cls = "threads"
    if is_given("queues"):
        log.warning("--queues is not heeded: the device decides which queue a worker takes jobs from")
    pool = concurrency.get_implementation(sender.pool_cls)
    if get_settings().role == "finetune":
        _choose_finetuning_pool(sender, pool)
        if is_given("concurrency"):
            log.warning("--concurrency is not heeded: a finetuning worker trains one model at a time")
        return
    is_prefork = issubclass(pool, PreforkPool)
    if not is_given("concurrency") or not isinstance(sender.concurrency, int):  # "auto"
        # Threads only wait for the engine; a prefork child holds a model and computes; solo takes one job.
        sender.concurrency = (
            num_cores() if is_prefork else 1 if issubclass(pool, SoloPool) else get_settings().max_jobs
        )
    global _num_children
    _num_children = sender.concurrency if is_prefork else 0


class FinetuningPool(ThreadsPool):
    """Threads whose job Celery may want to end, though of a thread there is nothing to kill.

    On SIGQUIT Celery (5.7) calls all of these: the job is saved and goes back to the queue. A job that was
    revoked with ``terminate`` is cancelled by the result backend, which hears of it next.
    """

    def on_stop(self) -> None:
        """It waits for the job, which must therefore know that it is to end."""
        drain()
        super().on_stop()

    def on_apply(self, *args: Any, **kwargs: Any) -> Any:
        result = super().on_apply(*args, **kwargs)
        result.terminate = lambda signal: None
        return result

    def terminate_job(self, pid: object, signal: object = None) -> None:
        """Nothing."""


def _choose_finetuning_pool(sender: Any, pool: type) -> None:
    """One thread, which waits for the training process."""
    if not issubclass(pool, ThreadsPool):
        _refuse("a finetuning worker runs with --pool threads only: its training is a process of its own")
    sender.pool_cls, sender.concurrency = FinetuningPool, 1


@signals.celeryd_after_setup.connect
@or_exit
def set_up(sender: str, instance: Any, **_: Any) -> None:
    """Before the first connection: the device decides the queue, and the model is there before any job."""
    if _num_children:
        device = str(_preflight()["device"])
        if device != "cpu":
            _refuse(f"the prefork pool works on the CPU only, not on {device}; use --pool threads")
        queue = queue_for(device)
    else:
        is_finetuning = get_settings().role == "finetune"
        process = _start_finetuning(sender) if is_finetuning else _start(sender, end_worker)
        queue, instance.intake = process.queue, process.intake
    instance.app.amqp.queues.select([queue])


@signals.worker_process_init.connect
@or_exit
def set_up_child(sender: Any = None, **_: Any) -> None:
    """A prefork child loads for itself. The solo pool sends this signal too, for its only process."""
    if _num_children:
        index = getattr(billiard.current_process(), "index", os.getpid())
        _start(f"{sender}/{index}", end_child, _num_children, index).ready()


@signals.worker_ready.connect
def announce_ready(**_: Any) -> None:
    if _process is not None:
        _process.ready()


@signals.after_setup_logger.connect
def keep_our_lines(**_: Any) -> None:
    """Plain ``celery worker`` logs from WARNING up; what a worker runs on must be there too."""
    logging.getLogger("worker").setLevel(logging.INFO)


@signals.worker_shutting_down.connect
def drain(**_: Any) -> None:
    if _process is not None:
        _process.drain()


@signals.worker_shutdown.connect
@signals.worker_process_shutdown.connect
def stop(sender: Any = None, **_: Any) -> None:
    if _process is None:
        return
    _process.stop()
    if _process.is_dead and hasattr(sender, "exitcode"):
        sender.exitcode = EXIT_STATUS  # a warm shutdown ends well, but service managers are to start it again
