"""Handlers of Celery's worker signals: device, queue and model at the start, a clean stop at the end.

With the threads and solo pools, this process holds the model. With prefork, each child does. The prefork
parent must not run torch before it forks, and a finetuning worker never runs torch: a probe process finds
their device.
"""

import logging
import os
import sys
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, Final, NoReturn, ParamSpec

import billiard
import click
from celery import concurrency, signals
from celery.concurrency.prefork import TaskPool as PreforkPool
from celery.concurrency.solo import TaskPool as SoloPool
from celery.concurrency.thread import TaskPool as ThreadsPool
from celery.utils.nodenames import gethostname

from kronos_client.logs import PER_JOB, log_json, use_json
from kronos_client.settings import SettingsError
from kronos_model.devices.cores import num_cores
from kronos_model.errors import KronosError
from kronos_model.processes.exiting import collect_nothing_at_exit
from worker.app import app
from worker.broker import transport
from worker.broker.connecting import ConnectionPause
from worker.broker.steps import ClaimRenewal, QueueWatcher, TransportCheck
from worker.inference.capacity import Capacity, CapacityStep, num_threads
from worker.inference.gpu_failover import GpuFailover
from worker.inference.pools import WaitingThreadsPool, given, is_given
from worker.inference.probe import ProbeError, run_probe
from worker.inference.shutdown import EXIT_STATUS, end_child, end_worker
from worker.monitoring.node_name import node_name
from worker.process import current
from worker.settings import explain, get_settings

log = logging.getLogger(__name__)

STEPS: Final = {ConnectionPause, GpuFailover, CapacityStep, TransportCheck, ClaimRenewal, QueueWatcher}
app.steps["consumer"].update(STEPS)

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
        except SettingsError as error:
            _refuse(str(error))
        except Exception:  # a worker without its model must not take jobs
            log.exception("the worker cannot start")
            raise SystemExit(1) from None

    return handle


def _start(node: str, end_process: Callable[[], None], num_processes: int = 1, index: int = 0) -> Any:
    """Start this process, the one of ``num_processes`` with this index, and load its models."""
    settings = get_settings()
    if settings.role == "finetune":
        from worker.training.finetune_process import FinetuneProcess

        current.process = FinetuneProcess(settings, node, probed_device())
        current.process.capacity = Capacity(lambda: ())  # without an engine, there is room for one job
    else:
        from worker.inference.forecast_process import ForecastProcess  # imports torch

        if settings.metrics_port is not None:
            # Each child serves its own metrics.
            settings = settings.model_copy(update={"metrics_port": settings.metrics_port + index})
        current.process = ForecastProcess(settings, node, on_engine_death=end_process)
    outcomes = transport.backend().outcomes
    outcomes.on_end = current.process.report_end
    current.process.metrics.outcomes_kept.set_function(lambda: outcomes.num_kept_bytes)
    current.process.start(num_processes)
    return current.process


@cache
def probed_device() -> dict[str, Any]:
    """The device that child processes will resolve, found without torch in this process."""
    settings = get_settings()
    try:
        report = run_probe(
            [settings.device],
            with_model=settings.role == "forecast",
            error_sink=lambda name, line: sys.stderr.write(f"{line}\n"),
        )
    except (ProbeError, ModuleNotFoundError) as error:
        _refuse(f"the device could not be tested: {error}; run kronos check")
    (device,), model = report["devices"], report["model"]
    if "error" in device:
        _refuse(device["error"])
    if current.num_children and device["device"] != "cpu":
        _refuse(f"the prefork pool works on the CPU only, not on {device['device']}; use --pool threads")
    if model is not None and "error" in model:
        _refuse(model["error"])
    return dict(device)


@signals.worker_init.connect
@or_exit
def choose_pool(sender: Any, **_: Any) -> None:
    """Use threads unless the command line names a pool, and choose the default concurrency.

    ``worker_pool`` in the configuration is no alternative: in Celery 5.7 it overrides ``--pool prefork``.
    Celery reads both attributes just after this signal.
    """
    if click.get_current_context(silent=True) is not None and not is_given("pool"):
        sender.pool_cls = "threads"
    if get_settings().low_priority_max_wait_s is not None:
        log.warning("KRONOS_LOW_PRIORITY_MAX_WAIT_S is ignored: each priority has its share; unset it")
    if is_given("queues"):
        log.warning("--queues is ignored: the device decides which queue a worker takes jobs from")
    pool = concurrency.get_implementation(sender.pool_cls)
    if (is_given("time_limit") or is_given("soft_time_limit")) and not issubclass(pool, PreforkPool):
        log.warning("--time-limit and --soft-time-limit need --pool prefork: send time_limit with the job")
    is_prefork = issubclass(pool, PreforkPool)
    if is_given("autoscale") and not is_prefork:
        _refuse(
            "--autoscale needs --pool prefork: threads only wait for the engine, so KRONOS_MAX_JOBS is enough"
        )
    if get_settings().role == "finetune":
        _choose_finetuning_pool(sender, pool)
        if is_given("concurrency"):
            log.warning("--concurrency is ignored: a finetuning worker runs one job at a time")
        return
    if issubclass(pool, ThreadsPool):
        sender.pool_cls = WaitingThreadsPool
    if not is_given("concurrency") or not isinstance(sender.concurrency, int):  # "auto"
        # A prefork child computes with its own model. Solo takes one job. Threads only wait for the engine.
        if is_prefork:
            sender.concurrency = num_cores()
        else:
            sender.concurrency = 1 if issubclass(pool, SoloPool) else num_threads(_max_jobs())
    current.num_children = max(given("autoscale") or [sender.concurrency]) if is_prefork else 0


def _own_device() -> Any:
    """The device of a process that holds the model itself."""
    from kronos_model.devices.resolution import resolve_device  # imports torch

    return resolve_device(get_settings().device)[0]


def _max_jobs() -> int:
    """Jobs of the lowest class that such a process holds."""
    from worker.inference.model_loader import max_jobs_on  # imports torch

    return max_jobs_on(_own_device(), get_settings())


@signals.worker_init.connect
@or_exit
def set_options(sender: Any, **_: Any) -> None:
    """Set what a worker needs and Flower must not have: Flower reads the transport as part of a URL."""
    sender.app.conf.broker_transport = transport.TRANSPORT
    # Our workers elect no leader, and Celery 5.7 leaks gossip's connections when Redis goes away.
    sender.options["without_gossip"] = True
    collect_nothing_at_exit()


@signals.celeryd_init.connect
@or_exit
def choose_log_format(instance: Any, **_: Any) -> None:
    """Choose the format before Celery logs its first line; it sets up logging later."""
    if get_settings().log_format == "json":
        log_json()
        instance.quiet = True  # its banner is not JSON


@signals.worker_init.connect
@or_exit
def name_worker(sender: Any, **_: Any) -> None:
    """Name the worker unless the command line does. Celery reads the name just after this signal."""
    if click.get_current_context(silent=True) is None or is_given("hostname"):
        return
    if current.num_children or get_settings().role == "finetune":
        device = str(probed_device()["device"])
    else:
        device = str(_own_device())
    sender.hostname = node_name(get_settings(), device, gethostname(), os.getpid())


class FinetuningPool(WaitingThreadsPool):
    """The pool of a finetuning worker. When it stops, its job is saved and goes back to the queue."""

    def on_stop(self) -> None:
        """Stop the job first: the pool waits for it."""
        drain()
        super().on_stop()


def _choose_finetuning_pool(sender: Any, pool: type) -> None:
    """Use one thread, which waits for the training process. Check the folders before the slow probe."""
    from worker.training.finetune_process import checked_data_folder, checked_model_folder

    checked_model_folder(get_settings())
    checked_data_folder(get_settings())
    if not issubclass(pool, ThreadsPool):
        _refuse("a finetuning worker trains in a separate process: use --pool threads")
    sender.pool_cls, sender.concurrency = FinetuningPool, 1


@signals.celeryd_after_setup.connect
@or_exit
def set_up(sender: str, instance: Any, **_: Any) -> None:
    """Select the device's queue and load the model, before the first connection."""
    if get_settings().shared_exchanges:
        log.warning(
            "KRONOS_SHARED_EXCHANGES is on: every Celery app on this Redis database can control this worker, "
            "and shut it down; unset it when no process of 0.1.0 runs"
        )
    transport.message_consumer()  # before the pool forks: children share the deadline of its outcomes
    if current.num_children:
        queue = get_settings().queue_names.on_device(probed_device()["device"])
    else:
        process = _start(sender, end_worker)
        transport.message_consumer().on_dead = process.metrics.messages_dead.inc
        queue, instance.capacity, instance.claims = process.queue, process.capacity, process.claims
    instance.app.amqp.queues.select([queue])


@signals.worker_process_init.connect
@or_exit
def set_up_child(sender: Any = None, **_: Any) -> None:
    """Load the model in a prefork child. The solo pool sends this signal too, for its only process."""
    if current.num_children:
        index = getattr(billiard.current_process(), "index", os.getpid())
        _start(f"{sender}/{index}", end_child, current.num_children, index).ready()


@signals.worker_ready.connect
def announce_ready(**_: Any) -> None:
    """Announce that this worker takes jobs."""
    if current.process is not None:
        current.process.ready()


@signals.after_setup_logger.connect
@signals.after_setup_task_logger.connect
def keep_our_lines(logger: logging.Logger, **_: Any) -> None:
    """Log our lines from INFO up. Plain ``celery worker`` logs from WARNING up."""
    logging.getLogger("worker").setLevel(logging.INFO)
    if get_settings().log_format == "json":
        use_json(logger)
        for name in PER_JOB:
            logging.getLogger(name).setLevel(logging.WARNING)


@signals.worker_shutting_down.connect
def drain(sig: str | None = None, **_: Any) -> None:
    """Announce the shutdown, once; ``sig`` is the signal that caused it."""
    current.is_ending = current.is_ending or sig is not None
    is_first, current.is_draining = not current.is_draining, True
    if is_first:
        transport.backend().outcomes.keep_for(get_settings().visibility_timeout_s)
    if current.process is not None and is_first:
        current.process.drain()


@signals.worker_shutdown.connect
@signals.worker_process_shutdown.connect
def stop(sender: Any = None, **_: Any) -> None:
    """Stop the process's threads, and set an exit status that says if its engines died."""
    if current.process is not None:
        current.process.stop()
    if not hasattr(sender, "exitcode"):
        return
    if current.process is not None and current.process.is_dead:
        sender.exitcode = EXIT_STATUS  # not 0, so that the service manager starts the worker again
    elif current.is_ending:
        sender.exitcode = 0  # Celery counts SIGINT as a failure
