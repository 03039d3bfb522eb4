"""Handlers of Celery's worker signals: device, queue and model at the start, a clean stop at the end.

A finetuning worker never runs torch: a probe process finds its device.
"""

import gc
import logging
import os
import sys
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, Final, NoReturn, ParamSpec

import click
from celery import signals
from celery.utils.nodenames import gethostname

from kronos_client.contract.errors import JobError
from kronos_client.logs import PER_JOB, log_json, use_json
from kronos_client.redis.connection import refuse_unusable
from kronos_client.settings import SettingsError
from kronos_model.errors import KronosError
from kronos_model.processes.children import collect_nothing_at_exit
from worker.app import app
from worker.broker import transport
from worker.broker.connecting import ConnectionPause, redis_of
from worker.broker.consuming import rounds
from worker.broker.steps import ClaimRenewal, EventBuffer, QueueWatcher, TransportCheck
from worker.celery_types import Worker
from worker.inference.capacity import MAX_CALLBACK_JOBS, Capacity, CapacityStep
from worker.inference.forced_shutdown import EXIT_STATUS, ShutdownLimit, end_worker
from worker.inference.gpu_failover import GpuFailover
from worker.inference.pools import WaitingThreadsPool, is_given
from worker.inference.probe import ProbeError, run_probe
from worker.monitoring import tracing
from worker.process import WorkerProcess, current, node_name
from worker.settings import explain, get_settings

log = logging.getLogger(__name__)

STEPS: Final = {
    ConnectionPause,
    GpuFailover,
    CapacityStep,
    EventBuffer,
    TransportCheck,
    ClaimRenewal,
    QueueWatcher,
}
app.steps["consumer"].update(STEPS)

IGNORED: Final = ("pool", "concurrency", "autoscale", "time-limit", "soft-time-limit")
"""Options of ``celery worker`` that are accepted, and change nothing."""

P = ParamSpec("P")


def _refuse(reason: str) -> NoReturn:
    log.critical("%s", reason)
    raise SystemExit(1)


def or_exit(handler: Callable[P, None]) -> Callable[P, None]:
    """Make the worker exit if this handler fails. Celery would only log the exception."""

    @wraps(handler)
    def handle(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            handler(*args, **kwargs)
        except KronosError as error:
            _refuse(explain(error))
        except (SettingsError, JobError) as error:
            _refuse(str(error))
        except Exception:  # a worker without its model must not take jobs
            log.exception("the worker cannot start")
            raise SystemExit(1) from None

    return handle


def _start(node: str) -> WorkerProcess:
    """Start this process, and load its models."""
    settings = get_settings()
    refuse_unusable(redis_of(settings.redis_url.get_secret_value()))
    if settings.role == "finetune":
        from worker.training.finetune_process import FinetuneProcess

        process: WorkerProcess = FinetuneProcess(settings, node, probed_device())
        process.capacity = Capacity(lambda: (), max_jobs=1)
    else:
        from worker.inference.forecast_process import ForecastProcess  # imports torch

        process = ForecastProcess(settings, node, on_engine_death=end_worker)
    current.process = process
    tracing.set_up(process.metrics.registry)
    backend = transport.backend()
    backend.store, backend.outcomes = process.job_store, process.outcomes
    transport.message_consumer().on_dead = process.metrics.messages_dead.inc
    rounds.calls.append(process.run_jobs)
    process.start()
    return process


@cache
def probed_device() -> dict[str, Any]:
    """The device of the finetuning processes, found without torch in this process."""
    try:
        report = run_probe(
            [get_settings().device], error_sink=lambda name, line: sys.stderr.write(f"{line}\n")
        )
    except (ProbeError, ModuleNotFoundError) as error:
        _refuse(f"the device could not be tested: {error}; run kronos check")
    (device,) = report["devices"]
    if "error" in device:
        _refuse(device["error"])
    return dict(device)


@signals.worker_init.connect
@or_exit
def choose_pool(sender: Worker, **_: object) -> None:
    """Use our pool, whatever the command line asks for. Celery reads them just after this signal.

    ``worker_pool`` in the configuration is no alternative: in Celery 5.7 it overrides ``--pool``.
    """
    is_finetuning = get_settings().role == "finetune"
    ignored = [name for name in IGNORED if is_given(name.replace("-", "_"))]
    if ignored:
        why = "one job at a time" if is_finetuning else "its one engine computes all forecasts together"
        remedy = "start more workers to use more cores or devices, and send time_limit with the job"
        log.warning(
            "%s: ignored, since a worker has %s; %s", ", ".join(f"--{n}" for n in ignored), why, remedy
        )
    if is_given("queues"):
        log.warning("--queues is ignored: the device decides which queue a worker takes jobs from")
    sender.options["autoscale"] = None
    if is_finetuning:
        from worker.training.finetune_process import checked_folders

        checked_folders(get_settings())  # before the slow probe
        sender.pool_cls, sender.concurrency = FinetuningPool, 1
    else:
        sender.pool_cls, sender.concurrency = WaitingThreadsPool, MAX_CALLBACK_JOBS


@signals.worker_init.connect
@or_exit
def set_options(sender: Worker, **_: object) -> None:
    """Set what a worker needs and Flower must not have: Flower reads the transport as part of a URL."""
    sender.app.conf.broker_transport = transport.TRANSPORT
    # Our workers elect no leader, and Celery 5.7 leaks gossip's connections when Redis goes away.
    sender.options["without_gossip"] = True
    collect_nothing_at_exit()


@signals.celeryd_init.connect
@or_exit
def choose_log_format(instance: Worker, **_: object) -> None:
    """Choose the format before Celery logs its first line; it sets up logging later."""
    if get_settings().log_format == "json":
        log_json()
        instance.quiet = True  # its banner is not JSON


@signals.worker_init.connect
@or_exit
def name_worker(sender: Worker, **_: object) -> None:
    """Name the worker unless the command line does. Celery reads the name just after this signal."""
    if click.get_current_context(silent=True) is None or is_given("hostname"):
        return
    if get_settings().role == "finetune":
        device = str(probed_device()["device"])
    else:
        from kronos_model.devices.resolution import resolve_device  # imports torch

        device = str(resolve_device(get_settings().device)[0])
    sender.hostname = node_name(get_settings(), device, gethostname(), os.getpid())


class FinetuningPool(WaitingThreadsPool):
    """The pool of a finetuning worker. When it stops, its job is saved and goes back to the queue."""

    def on_stop(self) -> None:
        """Stop the job first: the pool waits for it."""
        drain()
        super().on_stop()


@signals.celeryd_after_setup.connect
@or_exit
def set_up(sender: str, instance: Worker, **_: object) -> None:
    """Select the device's queue and load the model, before the first connection."""
    if get_settings().shared_exchanges:
        log.warning(
            "KRONOS_SHARED_EXCHANGES is on: every Celery app on this Redis database can control this worker, "
            "and shut it down; unset it when no process of 0.1.0 runs"
        )
    process = _start(sender)
    instance.capacity, instance.claims = process.capacity, process.claims
    instance.on_tick = ShutdownLimit().check
    instance.app.amqp.queues.select([process.queue])


@signals.worker_ready.connect
def announce_ready(**_: object) -> None:
    """Announce that this worker takes jobs."""
    if current.process is not None:
        rounds.once.append(current.process.ready)
        gc.collect()
        gc.freeze()  # else each full collection visits PyTorch's modules, 170,000 objects


@signals.after_setup_logger.connect
@signals.after_setup_task_logger.connect
def keep_our_lines(logger: logging.Logger, **_: object) -> None:
    """Log our lines from INFO up. Plain ``celery worker`` logs from WARNING up."""
    logging.getLogger("worker").setLevel(logging.INFO)
    if get_settings().log_format == "json":
        use_json(logger)
        for name in PER_JOB:
            logging.getLogger(name).setLevel(logging.WARNING)


@signals.worker_shutting_down.connect
def drain(sig: str | None = None, **_: object) -> None:
    """Announce the shutdown, once; ``sig`` is the signal that caused it."""
    current.is_ending = current.is_ending or sig is not None
    is_first, current.is_draining = not current.is_draining, True
    if is_first and current.process is not None:
        current.process.outcomes.keep_for(get_settings().visibility_timeout_s)
        current.process.drain()


@signals.worker_shutdown.connect
def stop(sender: Any = None, **_: object) -> None:
    """Stop the process's threads, and set an exit status that says if its engines died."""
    if current.process is not None:
        current.process.stop()
    if not hasattr(sender, "exitcode"):
        return
    if current.process is not None and current.process.is_dead:
        sender.exitcode = EXIT_STATUS  # not 0, so that the service manager starts the worker again
    elif current.is_ending:
        sender.exitcode = 0  # Celery counts SIGINT as a failure
