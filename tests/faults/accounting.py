"""Accounts of a test's jobs: which were accepted, how often each began, and how each ended."""

import contextlib
import json
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd
from redis.exceptions import RedisError

from kronos_client.client import ForecastClient, ForecastHandle
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import job_key
from kronos_client.redis.connection import connect
from tests.faults.fleet import Fleet
from tests.faults.redis_under_fault import RedisUnderFault
from tests.waiting import WAIT_S

RESULT_PREFIX: Final = "celery-task-meta-"
ENDED: Final = ("SUCCESS", "FAILURE", "REVOKED")
SEEDS: Final = range(4)
TOLERANCE: Final = 1e-4
"""Of forecasts that shared a batch with others."""

FORMS: Final[dict[str, dict[str, Any]]] = {
    "small": {"lookback": 40, "pred_len": 4},
    "wide": {"lookback": 30, "pred_len": 6, "sample_count": 6},
    "long": {"lookback": 30, "pred_len": 60},
    "endless": {"lookback": 8, "pred_len": 120, "sample_count": 2},
    "heavy": {"lookback": 120, "pred_len": 60},
}
"""By the number of steps, which a paced engine makes slow: 4, 6, 60, 120; one takes long by itself."""

PRICED: Final = ("small", "wide", "long", "heavy")
"""Those whose undisturbed forecasts are known."""


def options_of(candles: pd.DataFrame, form: str, seed: int) -> dict[str, Any]:
    """What ``ForecastClient.submit`` takes."""
    options = dict(FORMS[form])
    return {"candles": candles[: options.pop("lookback")], "seed": seed, "sample_count": 1, **options}


Forecasts = dict[tuple[str, int], Any]


def undisturbed(client: ForecastClient, candles: pd.DataFrame) -> Forecasts:
    """The forecast of each priced form and seed, by an undisturbed worker."""
    handles = {
        (form, seed): client.submit(**options_of(candles, form, seed)) for form in PRICED for seed in SEEDS
    }
    return {key: handle.wait(60).series[0].mean["close"] for key, handle in handles.items()}


@dataclass(frozen=True)
class Event:
    """A published state of a job. ``node`` is empty if the message has none."""

    at: float
    status: str
    node: str
    forecast: int  # a hash of its series


class Listener:
    """Receives every state of every job, except while Redis or its connection is away."""

    def __init__(self, url: str) -> None:
        self.events: dict[str, list[Event]] = defaultdict(list)
        self._url = url
        self._is_over = False
        self._thread = threading.Thread(target=self._listen, name="test-listener", daemon=True)
        self._subscribed = threading.Event()
        self._thread.start()
        assert self._subscribed.wait(10)

    def stop(self) -> None:
        self._is_over = True
        self._thread.join(5)

    def _listen(self) -> None:
        while not self._is_over:
            with (
                contextlib.suppress(RedisError, OSError),
                connect(self._url) as redis,
                redis.pubsub() as channel,
            ):
                channel.psubscribe(f"{RESULT_PREFIX}*")
                while not self._is_over:
                    message = channel.get_message(timeout=0.2)
                    if message is not None and message["type"] == "psubscribe":
                        self._subscribed.set()
                    elif message is not None and message["type"] == "pmessage":
                        self._note(message["channel"].removeprefix(RESULT_PREFIX), message["data"])
            time.sleep(0.02)

    def _note(self, job_id: str, data: str) -> None:
        meta = json.loads(data)
        result = meta.get("result")
        node = str(result.get("hostname", "")) if isinstance(result, dict) else ""
        forecast = json.dumps(result.get("series")) if isinstance(result, dict) else ""
        self.events[job_id].append(Event(time.monotonic(), meta["status"], node, hash(forecast)))


@dataclass(frozen=True)
class Entry:
    """An accepted job; ``form`` is empty for one whose forecast is not compared."""

    form: str
    seed: int


class Accounts:
    """All jobs of one test.

    Args:
        name: begins the ids, which are numbered.
        forecasts: those that nothing disturbed.
    """

    def __init__(
        self, name: str, redis: RedisUnderFault, candles: pd.DataFrame, forecasts: Forecasts, fleet: Fleet
    ) -> None:
        self.accepted: dict[str, Entry] = {}
        self.listener = Listener(redis.url)
        self.name = name
        self._redis = redis
        self.candles = candles
        self._forecasts = forecasts
        self._fleet = fleet
        self._lock = threading.Lock()
        self._num_ids = 0
        self._known_ended: set[str] = set()

    def next_id(self) -> str:
        with self._lock:
            self._num_ids += 1
            return f"{self.name}-{self._num_ids}"

    def submit(
        self,
        client: ForecastClient,
        form: str,
        *,
        job_id: str | None = None,
        seed: int | None = None,
        **more: Any,
    ) -> ForecastHandle:
        """Enqueue one job and count it, unless this raises."""
        job_id = job_id or self.next_id()
        if seed is None:
            seed = int(job_id.rpartition("-")[2]) % len(SEEDS)
        handle = client.submit(**options_of(self.candles, form, seed) | more, job_id=job_id)
        self.count(job_id, form, seed)
        return handle

    def count(self, job_id: str, form: str = "", seed: int = 0) -> None:
        """A job was accepted."""
        self.accepted[job_id] = Entry(form, seed)

    def submit_many(self, client: ForecastClient, form: str, count: int) -> list[ForecastHandle]:
        return [self.submit(client, form) for _ in range(count)]

    def submit_until_accepted(
        self, client: ForecastClient, form: str, timeout_s: float = WAIT_S, **more: Any
    ) -> tuple[ForecastHandle, list[tuple[str, float]]]:
        """Try again under the same id, as a client should. Also returns each refusal's code and seconds."""
        job_id, refusals = self.next_id(), []
        deadline = time.monotonic() + timeout_s
        while True:
            asked_at = time.monotonic()
            try:
                return self.submit(client, form, job_id=job_id, **more), refusals
            except JobError as error:
                refusals.append((error.code, time.monotonic() - asked_at))
                if error.code == ErrorCode.ENQUEUE_UNCERTAIN and error.details["job_id"] == job_id:
                    self.count(job_id, form, int(job_id.rpartition("-")[2]) % len(SEEDS))
                elif error.code not in (ErrorCode.BROKER_UNREACHABLE, "QUEUE_FULL"):
                    raise
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    # Outcomes

    def metas(self, job_ids: Iterable[str] | None = None) -> dict[str, dict[str, Any]]:
        """The stored state of each job that has one."""
        job_ids = list(self.accepted if job_ids is None else job_ids)
        found: dict[str, dict[str, Any]] = {}
        for first in range(0, len(job_ids), 500):
            part = job_ids[first : first + 500]
            texts = self._redis.connection.mget([f"{RESULT_PREFIX}{job_id}" for job_id in part])
            found |= {
                job_id: json.loads(text) for job_id, text in zip(part, texts, strict=True) if text is not None
            }
        return found

    def ended(self, job_ids: Iterable[str] | None = None) -> set[str]:
        """The jobs that ended with a result or an error."""
        return {job_id for job_id, meta in self.metas(job_ids).items() if meta["status"] in ENDED}

    def dead(self) -> list[dict[str, Any]]:
        """The dead messages."""
        return [json.loads(text) for text in self._redis.connection.lrange("kronos:dead", 0, -1)]

    def open(self) -> set[str]:
        """The jobs that were accepted and are neither ended nor dead."""
        left = set(self.accepted) - self._known_ended
        self._known_ended |= (ended := self.ended(left))
        return left - ended - {str(entry.get("id")) for entry in self.dead()}

    def in_hand(self, node: str) -> set[str]:
        """Jobs that this worker was the last to begin, with a claim that was not released."""
        begun = []
        for job_id, events in list(self.listener.events.items()):
            starts = [event for event in events if event.status == "STARTED"]
            if starts and starts[-1].node.startswith(node) and not any(e.status in ENDED for e in events):
                begun.append(job_id)
        return {job_id for job_id in self._with_field(begun, "holder") if job_id in self.accepted}

    def lost_before(self, job_ids: Iterable[str]) -> set[str]:
        """Jobs whose process died once; a second time makes them suspects, which run one at a time."""
        return self._with_field(job_ids, "lost")

    def _with_field(self, job_ids: Iterable[str], field: str) -> set[str]:
        """Those whose record has it."""
        job_ids = list(job_ids)
        with self._redis.connection.pipeline(transaction=False) as pipe:
            for job_id in job_ids:
                pipe.hexists(job_key(job_id), field)
            return {job_id for job_id, has in zip(job_ids, pipe.execute(), strict=True) if has}

    def num_starts(self, job_id: str) -> int:
        """How often a worker published that it began the job."""
        return sum(event.status == "STARTED" for event in self.listener.events.get(job_id, []))

    def published_forecasts(self, job_id: str) -> set[int]:
        """The different forecasts that were published of a job, by their hashes."""
        return {event.forecast for event in self.listener.events.get(job_id, []) if event.status in ENDED}

    def num_published_outcomes(self, job_id: str) -> int:
        return sum(event.status in ENDED for event in self.listener.events.get(job_id, []))

    def await_restart(self, job_ids: Collection[str], since: float) -> float:
        """Wait until each job began again or ended after that moment. Returns the seconds of the last one."""
        while True:
            moments = {
                job_id: [event.at for event in list(self.listener.events[job_id]) if event.at > since]
                for job_id in job_ids
            }
            missing = [job_id for job_id, found in moments.items() if not found]
            if not missing:
                return max((min(found) - since for found in moments.values()), default=0.0)
            if not set(missing) - self.ended(missing):
                return time.monotonic() - since
            if time.monotonic() - since > WAIT_S:
                raise AssertionError(
                    f"{len(missing)} of {len(job_ids)} lost jobs were not begun again within {WAIT_S} s: "
                    f"{sorted(missing)[:5]}\n{self._fleet.logs()}"
                )
            time.sleep(0.05)

    def settle(self, timeout_s: float = WAIT_S) -> None:
        """Wait until every accepted job has its outcome."""
        deadline = time.monotonic() + timeout_s
        while left := self.open():
            if time.monotonic() > deadline:
                states = Counter(meta["status"] for meta in self.metas(left).values())
                records = {
                    job_id: self._redis.connection.hgetall(f"kronos:job:{job_id}")
                    for job_id in sorted(left)[:3]
                }
                raise AssertionError(
                    f"{len(left)} of {len(self.accepted)} jobs have no outcome after {timeout_s} s: "
                    f"{sorted(left)[:5]}, states {dict(states)}, queued {self._redis.queued()}, "
                    f"held {self._redis.held()}, records {records}\n{self._fleet.logs()}"
                )
            time.sleep(0.05)

    def num_bars(self) -> int:
        """The bars of all accepted jobs, over all paths."""
        forms = [FORMS[entry.form] for entry in self.accepted.values()]
        return sum(form["pred_len"] * form.get("sample_count", 1) for form in forms)

    def codes(self) -> Counter[str]:
        """The code of each job's outcome: "" for a result."""
        return Counter(code_of(meta) for meta in self.metas().values() if meta["status"] in ENDED)

    def assert_balanced(
        self,
        *,
        allowed: Collection[str] = (),
        may_repeat: bool = False,
        may_publish_again: bool = False,
        timeout_s: float = WAIT_S,
    ) -> None:
        """All that must hold once every job has settled.

        Args:
            allowed: codes that jobs may have failed with.
            may_repeat: of an outage, in which holders could not renew their claims.
            may_publish_again: of failovers: an outcome that no replica had confirmed comes again, equal.
        """
        self.settle(timeout_s)
        metas, dead = self.metas(), self.dead()
        dead_ids = {str(entry.get("id")) for entry in dead}
        results = [job_id for job_id, meta in metas.items() if meta["status"] == "SUCCESS"]
        failures = {job_id: code_of(meta) for job_id, meta in metas.items() if meta["status"] == "FAILURE"}
        only_dead = set(self.accepted) & dead_ids - set(results) - set(failures)
        assert len(self.accepted) == len(results) + len(failures) + len(only_dead)
        unexpected = {job_id: metas[job_id] for job_id, code in failures.items() if code not in allowed}
        assert not unexpected, f"{list(unexpected.items())[:3]}\n{self._fleet.logs()}"
        assert set(failures.values()) <= set(ErrorCode)
        assert not only_dead, f"dead: {dead[:3]}"
        twice = [job_id for job_id in self.accepted if self.num_published_outcomes(job_id) > 1]
        if may_publish_again:
            twice = [job_id for job_id in twice if len(self.published_forecasts(job_id)) > 1]
        assert twice == [], f"more than one outcome: {twice[:5]}"
        self._assert_undisturbed(results, metas)
        await_empty(
            lambda: {k: n for k, n in self._redis.queued().items() if n}, "left on queues", self._fleet
        )
        await_empty(lambda: {k: n for k, n in self._redis.held().items() if n}, "left unacked", self._fleet)
        await_empty(self._claims, "claims left", self._fleet)
        await_empty(
            lambda: list(self._redis.connection.scan_iter("kronos:cancel:*")), "wishes left", self._fleet
        )
        if not may_repeat:
            assert self._fleet.num_repeated() == 0

    def assert_computed_once(self) -> None:
        """Not by the number of starts: a job begins again if the answer to its start was lost."""
        assert self._fleet.num_bars() == self.num_bars()

    def _assert_undisturbed(self, results: Iterable[str], metas: dict[str, dict[str, Any]]) -> None:
        for job_id in results:
            entry = self.accepted[job_id]
            if (entry.form, entry.seed) in self._forecasts:
                actual = metas[job_id]["result"]["series"][0]["mean"]["close"]
                expected = self._forecasts[entry.form, entry.seed]
                np.testing.assert_allclose(actual, expected, rtol=TOLERANCE, err_msg=job_id)

    def _claims(self) -> set[str]:
        """The results of any job, from any sender."""
        keys = self._redis.connection.scan_iter(job_key("*"), count=1000)
        return self._with_field((key.removeprefix(job_key("")) for key in keys), "holder")

    def close(self) -> None:
        self.listener.stop()


def code_of(meta: dict[str, Any]) -> str:
    """The code of a stored outcome; "" for a result, "UNCODED" for an error without a code."""
    if meta["status"] == "SUCCESS":
        return ""
    result = meta.get("result")
    args = result.get("exc_message") if isinstance(result, dict) else None
    return str(args[0]) if isinstance(args, list) and len(args) == 4 else "UNCODED"


def await_empty(left: Callable[[], Any], what: str, fleet: Fleet, timeout_s: float = WAIT_S) -> None:
    """Wait: an acknowledgement comes a moment after the result, or a visibility timeout later."""
    deadline = time.monotonic() + timeout_s
    while found := left():
        assert time.monotonic() < deadline, f"{what}: {found}\n{fleet.logs()}"
        time.sleep(0.05)
