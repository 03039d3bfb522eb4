"""Mixed load with random faults: every job accounted for, and every process as large at the end as before."""

import os
import random
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable

import pytest
from redis.exceptions import RedisError

from kronos_client.client import ForecastClient
from kronos_client.contract.errors import ErrorCode, JobError
from tests.faults.accounting import Accounts
from tests.faults.conftest import MakeClient, Note
from tests.faults.fleet import Fleet
from tests.faults.redis_under_fault import RedisUnderFault
from tests.processes import Footprint, footprint
from tests.waiting import WAIT_S, await_true

SOAK_S, LONG_SOAK_S = 20, 1800
SEED = 20261120
MAX_OPEN = 150
PERIOD_S, SHORT_PERIOD_S = (2.0, 4.0), (0.5, 1.5)
"""Between two faults."""
GROWTH, SHORT_GROWTH = 1.05, 1.3
"""Of memory, from the second quarter to the last. In less than minutes a worker is not warm: its threads come
one by one, and each keeps some MB."""

EXPECTED = {ErrorCode.DEADLINE, ErrorCode.CANCELLED, ErrorCode.PRED_LEN_TOO_LONG}
REFUSED = {ErrorCode.BROKER_UNREACHABLE, ErrorCode.ENQUEUE_UNCERTAIN, "QUEUE_FULL"}


class Load:
    """A client on its own thread that sends random jobs. A tenth of them end in errors."""

    def __init__(self, accounts: Accounts, client: ForecastClient, dice: random.Random) -> None:
        self.error: Exception | None = None
        self.num_refused = 0
        self._accounts = accounts
        self._client = client
        self._dice = dice
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._send, name="test-load", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), "a client hangs"
        if self.error is not None:
            raise self.error

    def _send(self) -> None:
        try:
            while not self._is_over.wait(self._dice.uniform(0.02, 0.12)):
                try:
                    if len(self._accounts.open()) < MAX_OPEN:
                        self._send_one()
                except JobError as error:
                    if error.code not in REFUSED:
                        raise
                    self.num_refused += 1
                except (OSError, RedisError):  # the test's own look at Redis, while that is away
                    time.sleep(0.2)
        except Exception as error:  # noqa: BLE001 - reported to the test's own thread
            self.error = error

    def _send_one(self) -> None:
        dice, accounts = self._dice, self._accounts
        more = {"priority": dice.choice(["high", "normal", "normal", "low"])}
        kind = dice.random()
        if kind < 0.04:
            accounts.submit_until_accepted(self._client, "small", pred_len=500, **more)
        elif kind < 0.07:
            accounts.submit_until_accepted(self._client, "endless", deadline_s=dice.uniform(0.1, 1.0), **more)
        elif kind < 0.12:
            handle, _ = accounts.submit_until_accepted(self._client, "endless", **more)
            self._is_over.wait(dice.uniform(0, 0.5))
            handle.cancel()
        else:
            form = dice.choice(["small"] * 6 + ["wide"] * 3 + ["long"])
            accounts.submit_until_accepted(self._client, form, **more)


class Faults:
    """One fault at a time. The first worker is never killed, so that one process lives throughout."""

    def __init__(self, fleet: Fleet, redis: RedisUnderFault, accounts: Accounts, dice: random.Random) -> None:
        self.counts: dict[str, int] = defaultdict(int)
        self._kinds = (
            self.kill_worker, self.end_worker, self.kill_connections, self.restart_redis, self.pause_redis,
            self.fill_redis,
        )  # fmt: skip
        self._bag: list[Callable[[], None]] = []
        self._fleet = fleet
        self._redis = redis
        self._accounts = accounts
        self._dice = dice

    @property
    def were_all_kinds(self) -> bool:
        return len(self.counts) == len(self._kinds)

    def cause(self) -> None:
        """The next of all kinds, which come in any order, each as often as the others."""
        if not self._bag:
            self._bag = list(self._kinds)
            self._dice.shuffle(self._bag)
        fault = self._bag.pop()
        self.counts[fault.__name__] += 1
        fault()

    def kill_worker(self) -> None:
        self._replace(lambda worker: worker.kill())

    def end_worker(self) -> None:
        self._replace(lambda worker: worker.end())

    def _replace(self, remove: Callable) -> None:
        victim = self._fleet.running[-1]
        if victim is not self._fleet.workers[0]:
            remove(victim)
        self._fleet.begin()

    def kill_connections(self) -> None:
        self._redis.kill_connections()

    def restart_redis(self) -> None:
        self._redis.stop()
        self._redis.start()

    def pause_redis(self) -> None:
        with self._redis.paused():
            time.sleep(self._dice.uniform(0.5, 3))

    def fill_redis(self) -> None:
        with self._redis.full():
            time.sleep(self._dice.uniform(0.5, 2))


class Sizes:
    """Footprints of one process over time."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._seen: list[Footprint] = []

    def look(self) -> None:
        found = footprint(self._pid)
        assert found is not None, "the process is gone"
        self._seen.append(found)

    def quarters(self, part: Callable[[Footprint], int]) -> list[float]:
        """The median of each quarter of the time; the first is for warming up."""
        values = [part(one) for one in self._seen]
        size = len(values) // 4
        return [statistics.median(values[number * size : (number + 1) * size]) for number in range(4)]


@pytest.mark.timeout(2 * LONG_SOAK_S)
def test_mixed_load_with_random_faults(
    fleet: Fleet,
    redis: RedisUnderFault,
    accounts: Accounts,
    make_client: MakeClient,
    at_length: bool,
    note: Note,
):
    soak_s = float(os.environ.get("KRONOS_SOAK_S") or (LONG_SOAK_S if at_length else SOAK_S))
    seed = int(os.environ.get("KRONOS_SOAK_SEED") or SEED)
    dice = random.Random(seed)
    # So few jobs at once that the first ones below use all that a worker ever needs.
    for worker in [fleet.begin(KRONOS_MAX_JOBS="16") for _ in range(2)]:
        worker.wait_until_ready()
    for form in ("wide", "long", "small"):  # all slots and buffers are used once
        accounts.submit_many(make_client(), form, 150)
    accounts.settle()
    faults = Faults(fleet, redis, accounts, dice)
    loads = [Load(accounts, make_client(), random.Random(seed + number)) for number in (1, 2)]
    for load in loads:
        load.start()
    survivor, client = Sizes(fleet.workers[0].process.pid), Sizes(os.getpid())
    over_at = time.monotonic() + soak_s
    next_fault_at = time.monotonic() + soak_s / 8
    while time.monotonic() < over_at or not faults.were_all_kinds:
        if time.monotonic() > next_fault_at:
            faults.cause()
            next_fault_at = time.monotonic() + dice.uniform(*(PERIOD_S if at_length else SHORT_PERIOD_S))
        assert fleet.workers[0].is_running, f"the survivor is gone\n{fleet.logs()}"
        survivor.look()
        client.look()
        time.sleep(0.2)
    for load in loads:
        load.stop()
    note("faults", dict(faults.counts))
    note("jobs", len(accounts.accepted))
    await_true(redis.is_there, "Redis is there")
    accounts.assert_balanced(allowed=EXPECTED, may_repeat=True)
    note("ended as", dict(accounts.codes()))
    note("refused", sum(load.num_refused for load in loads))
    for worker in fleet.running:  # the last fault may just have begun one
        worker.wait_until_ready()
    note("repeated", fleet.num_repeated())
    assert accounts.codes()[""] > len(accounts.accepted) / 2
    is_long = soak_s >= LONG_SOAK_S / 2
    growth = GROWTH if is_long else SHORT_GROWTH
    num_new_connections = 4 if is_long else 16  # a short test does not meet the most threads at once early
    for name, sizes in (("worker", survivor), ("client", client)):
        for part, margin in (("rss_bytes", 0), ("num_threads", 2), ("num_descriptors", num_new_connections)):
            quarters = sizes.quarters(lambda one, part=part: getattr(one, part))
            note(f"{name} {part}", quarters)
            # The test keeps its books in the client's process, and a short test does not warm that up.
            if name == "worker" or (is_long and part != "rss_bytes"):
                limit = growth if part == "rss_bytes" else 1
                assert quarters[-1] <= quarters[1] * limit + margin, f"{name} {part} grew: {quarters}"
