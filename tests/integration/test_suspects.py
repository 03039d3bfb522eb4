"""Jobs that end their processes, together with healthy jobs, on real workers that are started again."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redis import Redis

from kronos_cli.stack.local_redis import LocalRedis
from kronos_client.client import ForecastClient
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import CPU_QUEUE, DEAD_KEY, job_key
from kronos_client.redis.queues import DELIVERY_KEYS
from tests.integration.conftest import StartWorker, WorkerUnderTest
from tests.processes import await_end
from tests.waiting import WAIT_S, await_true

POISON = 666
HELD = 7
WATCH = ("--include", "tests.integration.watched_engine")


class Watched:
    """Controls what engines do with a job, and lists their seeds; see ``watched_engine``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def let(self, what: str, seed: int) -> Path:
        """``hold``, ``raise`` or ``crash``; until the file is removed."""
        file = self.folder / f"{what}-{seed}"
        file.touch()
        return file

    def pids(self, seed: int) -> list[int]:
        """The processes whose engines were given the seed, in turn."""
        file = self.folder / "submitted"
        lines = file.read_text().splitlines() if file.exists() else []
        return [int(line.split()[1]) for line in lines if line.split()[0] == str(seed)]


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


@pytest.fixture
def start(start_worker: StartWorker, watched: Watched) -> Callable[..., WorkerUnderTest]:
    def start() -> WorkerUnderTest:
        return start_worker(
            "--loglevel",
            "INFO",
            *WATCH,
            KRONOS_VISIBILITY_TIMEOUT_S="3",
            WATCHED_ENGINE=str(watched.folder),
        )

    return start


@pytest.fixture
def keep_running(start) -> Iterator[Callable[..., None]]:
    """As a service manager: a worker that ends is started again."""
    is_over = threading.Event()
    threads: list[threading.Thread] = []

    def keep() -> None:
        def run() -> None:
            while not is_over.is_set():
                worker = start()
                while not is_over.wait(0.1) and worker.process.poll() is None:
                    pass
            worker.stop()

        threads.append(threading.Thread(target=run))
        threads[-1].start()

    yield keep
    is_over.set()
    for thread in threads:
        thread.join(WAIT_S)


def assert_nothing_is_left(redis: LocalRedis) -> None:
    with Redis.from_url(redis.url, decode_responses=True) as connection:
        unacked = DELIVERY_KEYS["forecast"].unacked, DELIVERY_KEYS["forecast"].renewed
        await_true(lambda: not connection.exists(*unacked) and not connection.keys(f"{CPU_QUEUE}*"))
        assert connection.lrange(DEAD_KEY, 0, -1) == []


def make_suspect(redis: LocalRedis, job_id: str) -> None:
    with Redis.from_url(redis.url) as connection:
        connection.hset(job_key(job_id), "lost", 2)


def record(redis: LocalRedis, job_id: str) -> dict[str, str]:
    with Redis.from_url(redis.url, decode_responses=True) as connection:
        return connection.hgetall(job_key(job_id))


@pytest.mark.parametrize("what", ["crash", pytest.param("raise", marks=pytest.mark.at_length)])
def test_a_job_that_ends_every_process_ends_coded_and_its_neighbours_well(
    keep_running, watched: Watched, client: ForecastClient, redis: LocalRedis, candles, what: str
):
    watched.let(what, POISON)
    poison = client.submit(candles[:40], pred_len=3, seed=POISON)
    neighbours = [client.submit(candles[:40], pred_len=3, seed=seed) for seed in range(1, 9)]
    keep_running()
    with pytest.raises(JobError) as ended:
        poison.wait(WAIT_S)
    assert ended.value.code == ErrorCode.WORKER_LOST
    assert ended.value.details["exit_status"] == {"crash": -11, "raise": 70}[what]
    assert len({tuple(one.wait(WAIT_S).series[0].mean["close"]) for one in neighbours}) == len(neighbours)
    assert len(watched.pids(POISON)) == len(set(watched.pids(POISON))) == 4
    assert_nothing_is_left(redis)


def test_a_healthy_job_whose_workers_were_killed_twice_gives_what_it_always_gives(
    start, watched: Watched, client: ForecastClient, redis: LocalRedis, candles
):
    hold = watched.let("hold", HELD)
    handle = client.submit(candles[:40], pred_len=3, seed=HELD)
    for killed in range(2):
        worker = start().wait_until_ready()
        await_true(lambda n=killed: len(watched.pids(HELD)) > n)
        worker.process.kill()
        worker.process.wait()
    hold.unlink()
    worker = start().wait_until_ready()
    forecast = handle.wait(WAIT_S)
    *_, third = watched.pids(HELD)
    assert third != worker.process.pid
    assert record(redis, handle.id)["lost"] == "2"
    assert forecast.worker == worker.node
    again = client.forecast(candles[:40], pred_len=3, seed=HELD, timeout_s=WAIT_S)
    assert watched.pids(HELD)[-1] == worker.process.pid
    assert again.series == forecast.series
    assert (again.model, again.engine, again.device, again.device_warning) == (
        forecast.model,
        forecast.engine,
        forecast.device,
        forecast.device_warning,
    )
    assert_nothing_is_left(redis)
    assert worker.stop() == 0


def test_a_job_submitted_again_while_it_runs_is_computed_once(
    start, watched: Watched, client: ForecastClient, redis: LocalRedis, candles
):
    workers = [start().wait_until_ready() for _ in range(2)]
    hold = watched.let("hold", HELD)
    handles = [client.submit(candles[:40], pred_len=3, seed=HELD, job_id="twice") for _ in range(2)]
    put_back = "goes back to the queue: another worker has the job"
    await_true(lambda: any(put_back in worker.log.read_text() for worker in workers))
    hold.unlink()
    assert len({tuple(handle.wait(WAIT_S).series[0].mean["close"]) for handle in handles}) == 1
    assert len(watched.pids(HELD)) == 1
    assert_nothing_is_left(redis)
    assert [worker.stop() for worker in workers] == [0, 0]


@pytest.mark.at_length
def test_suspects_are_cancelled_and_late_like_others_which_go_on_meanwhile(
    start, watched: Watched, client: ForecastClient, redis: LocalRedis, candles
):
    watched.let("hold", HELD)
    cancelled = client.submit(candles[:40], pred_len=3, seed=HELD)
    make_suspect(redis, cancelled.id)
    worker = start().wait_until_ready()
    await_true(lambda: watched.pids(HELD))
    make_suspect(redis, "late")  # before a worker can begin it
    late = client.submit(candles[:40], pred_len=3, seed=HELD, deadline_s=1, job_id="late")
    assert client.forecast(candles[:40], pred_len=3, seed=1, timeout_s=WAIT_S).worker == worker.node
    cancelled.cancel()
    codes = []
    for handle in (cancelled, late):
        with pytest.raises(JobError) as ended:
            handle.wait(WAIT_S)
        codes.append(ended.value.code)
    assert codes == [ErrorCode.CANCELLED, ErrorCode.DEADLINE]
    assert "lost_alone" not in record(redis, cancelled.id)
    assert_nothing_is_left(redis)
    assert worker.stop() == 0


@pytest.mark.at_length
def test_a_healthy_job_is_not_exhausted_by_kills_of_its_child(
    start, watched: Watched, client: ForecastClient, redis: LocalRedis, candles
):
    hold = watched.let("hold", HELD)
    handle = client.submit(candles[:40], pred_len=3, seed=HELD)
    make_suspect(redis, handle.id)
    worker = start().wait_until_ready()
    for killed in range(3):
        await_true(lambda n=killed: len(watched.pids(HELD)) > n)
        os.kill(watched.pids(HELD)[-1], signal.SIGKILL)
    hold.unlink()
    assert handle.wait(WAIT_S).worker == worker.node
    assert "lost_alone" not in record(redis, handle.id)
    assert_nothing_is_left(redis)
    assert worker.stop() == 0


@pytest.mark.at_length
def test_the_child_ends_with_its_worker_and_that_is_no_proof(
    start, watched: Watched, client: ForecastClient, redis: LocalRedis, candles
):
    hold = watched.let("hold", HELD)
    handle = client.submit(candles[:40], pred_len=3, seed=HELD)
    make_suspect(redis, handle.id)
    worker = start().wait_until_ready()
    await_true(lambda: watched.pids(HELD))
    worker.process.kill()
    worker.process.wait()
    assert await_end(watched.pids(HELD)[0])
    hold.unlink()
    worker = start().wait_until_ready()
    assert handle.wait(WAIT_S).worker == worker.node
    assert record(redis, handle.id)["lost"] == "3"
    assert "lost_alone" not in record(redis, handle.id)
    assert_nothing_is_left(redis)
    assert worker.stop() == 0
    assert await_end(watched.pids(HELD)[1])
