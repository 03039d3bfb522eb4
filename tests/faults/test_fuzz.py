"""Jobs with all kinds of errors: each ends in a result, a coded error or the list of dead messages.

Hypothesis makes them: a good job or its message with some parts replaced, and random bytes.
"""

import base64
import copy
import itertools
import json
import math
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from kronos_client.contract.errors import ErrorCode
from kronos_client.contract.names import DEAD_KEY
from kronos_client.redis.queues import list_keys
from kronos_model.bars import synthetic
from tests.faults.accounting import await_empty
from tests.faults.conftest import MakeClient
from tests.faults.fleet import Fleet
from tests.faults.redis_under_fault import RedisUnderFault
from tests.waiting import WAIT_S
from tests.worker.broker.test_messages import message
from worker.broker.consuming import TASKS
from worker.broker.messages import BadMessage, read_message

JOBS_PER_EXAMPLE = 100
NUM_SHORT, NUM_LONG = 400, 20_000
MARK = "FROM-THE-JOB"
ID = "ID-OF-THE-JOB"
MAX_LINE_CHARS = 2_000
MAX_GROWTH_MB = 300
"""What two cores' worth of jobs of every size leave behind in the allocator; a leak of 20,000 shows."""

BARS = synthetic.candles(seed=3, bars=24)


def good_job() -> dict[str, Any]:
    columns = {name: values.tolist() for name, values in BARS.columns.items()}
    timestamps = list(BARS.timestamps)
    return {
        "schema_version": 1,
        "series": [{"id": "a", "timestamps": timestamps, **columns}],
        "pred_len": 2,
        "sampling": {"temperature": 1.0, "top_k": 0, "top_p": 0.9, "sample_count": 1, "seed": 1},
        "output": {"quantiles": [0.1, 0.9], "paths": False, "repair": True},
        "device": "auto",
        "allow_fallback": True,
        "priority": "normal",
        "context_policy": "exact",
    }


FIELDS = [
    "",
    "a",
    "id",
    "job",
    "__type__",
    "__value__",
    "self",
    "model",
    "seed",
    "timezone",
    "deadline_s",
    "submitted_at",
    "future_timestamps",
    MARK,
]
TEXTS = st.sampled_from(
    ["", "auto", "cuda:0", "cuda:999999999999", "../../etc/passwd", "/etc/passwd", "\0",
     "\x1b[31m" + MARK + "\n", "2024-01-01T00:00:00Z", "America/New_York", "AAAA", "NaN",
     "\ud800", MARK * 200, "kronos-tiny", "%2e%2e/"]
)  # fmt: skip
NUMBERS = st.sampled_from(
    [0, -1, 1, 2, 10**3, 2**31, 2**63, 10**300, 0.5, -0.0, 1e308, float("nan"), float("inf"), 1e-320]
)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS | st.text(max_size=20) | st.integers() | st.floats(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=3),
    max_leaves=6,
)

DEEPER = st.sampled_from([True, True, True, False])
"""Without this, most changes are near the top."""


@st.composite
def changed(draw: st.DrawFn, value: Any) -> Any:
    """A copy in which some parts, anywhere, are others, are missing, or are too many."""
    value = copy.deepcopy(value)
    for _ in range(draw(st.integers(0, 3))):
        part: Any = value
        while True:
            keys = list(part) if isinstance(part, dict) else list(range(len(part)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(part[key], dict | list) and part[key] and draw(DEEPER):
                part = part[key]
                continue
            match draw(st.sampled_from(["replace", "remove", "add", "repeat"])):
                case "replace":
                    part[key] = draw(VALUES)
                case "remove":
                    del part[key]
                case "repeat" if isinstance(part, list):
                    part.extend([part[key]] * draw(st.sampled_from([1, 3, 100])))
                case _ if isinstance(part, dict):
                    part[draw(st.sampled_from(FIELDS))] = draw(VALUES)
                case _:
                    part.append(draw(VALUES))
            break
    return value


def encoded(envelope: Any) -> bytes:
    return json.dumps(envelope).encode()


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """Content of a queue; ``ID`` stands for the job's id."""
    named = {"headers": {"id": ID}, "properties": {"correlation_id": ID}}
    match draw(st.sampled_from(["job"] * 6 + ["kwargs", "body", "envelope", "bytes", "truncated"])):
        case "job":
            return encoded(message([[], {"job": draw(changed(good_job()))}, {}], **named))
        case "kwargs":
            return encoded(
                message([draw(VALUES), {"job": draw(VALUES), **draw(changed({"a": 1}))}, {}], **named)
            )
        case "body":
            body = base64.b64encode(draw(st.binary(max_size=60))).decode()
            return encoded(message(**named) | {"body": body})
        case "envelope":
            # Not the embedded callbacks: those are further messages, which would have to be counted too.
            return encoded(draw(changed(message([[], {"job": {}}, {}], **named))))
        case "truncated":
            whole = encoded(message([[], {"job": good_job()}, {}], **named))
            return whole[: draw(st.integers(0, len(whole)))]
    return draw(st.binary(max_size=100))


class Sent:
    """The messages put on the queues, and their expected outcomes."""

    def __init__(self) -> None:
        self.ids: set[str] = set()
        self.num_anonymous = 0

    def add(self, raw: bytes) -> bool:
        """Whether to send it: not if it would only run years later."""
        try:
            read = read_message(raw, TASKS)
        except BadMessage as error:
            job_id = error.job_id
        else:
            if read.eta is not None and read.eta > time.time():
                return False
            job_id = read.payload["headers"]["id"]
        if job_id in self.ids:
            return False
        if job_id is None:
            self.num_anonymous += 1
        else:
            self.ids.add(job_id)
        return True


@pytest.mark.timeout(3600)
def test_each_of_many_odd_jobs_ends_and_the_worker_lives(
    redis: RedisUnderFault, fleet: Fleet, make_client: MakeClient, candles, at_length: bool, note
) -> None:
    num_jobs = NUM_LONG if at_length else NUM_SHORT
    worker = fleet.start(KRONOS_MAX_DEAD_MESSAGES=str(10 * num_jobs))
    client = make_client()
    undisturbed = client.forecast(candles[:40], pred_len=4, seed=5).series[0].mean["close"]
    connection = redis.connection
    sent, codes, num_results = Sent(), dict[str, int](), 0
    growth_from_mb = 0.0
    numbers = itertools.count()

    def anonymous_dead() -> int:
        return sum(json.loads(entry)["id"] is None for entry in connection.lrange(DEAD_KEY, 0, -1))

    @settings(
        max_examples=math.ceil(1.1 * num_jobs / JOBS_PER_EXAMPLE),  # some are not sent
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(messages(), min_size=JOBS_PER_EXAMPLE, max_size=JOBS_PER_EXAMPLE))
    def send_and_wait(raws: list[bytes]) -> None:
        nonlocal num_results, growth_from_mb
        before = set(sent.ids)
        for index, raw in enumerate(raws):
            raw = raw.replace(ID.encode(), f"fuzz-{next(numbers)}".encode())
            if sent.add(raw):
                connection.lpush(list_keys("cpu")[index % 4], raw)
        waiting = sent.ids - before
        deadline = time.monotonic() + WAIT_S
        while waiting or anonymous_dead() < sent.num_anonymous:
            assert time.monotonic() < deadline, f"no answer to {waiting}"
            assert worker.is_running
            ids = sorted(waiting)
            for job_id, text in zip(
                ids, connection.mget([f"celery-task-meta-{i}" for i in ids] or ["-"]), strict=False
            ):
                meta = json.loads(text or "{}")
                if meta.get("status") == "SUCCESS":
                    num_results += 1
                elif meta.get("status") == "FAILURE":
                    code = meta["result"]["exc_message"][0]
                    codes[code] = codes.get(code, 0) + 1
                    assert meta["traceback"] is None
                    assert len(meta["result"]["exc_message"][1]) < MAX_LINE_CHARS
                else:
                    continue
                waiting.discard(job_id)
            time.sleep(0.01)
        growth_from_mb = growth_from_mb or _rss_mb(worker.process.pid)

    send_and_wait()

    assert set(codes) <= {str(code) for code in ErrorCode}
    assert ErrorCode.INTERNAL not in codes
    assert num_results + sum(codes.values()) == len(sent.ids)
    assert anonymous_dead() == sent.num_anonymous
    assert len(sent.ids) + sent.num_anonymous >= num_jobs
    await_empty(lambda: connection.keys("kronos.*unacked"), "unacknowledged messages", fleet)
    assert not connection.exists(*list_keys("cpu"))
    again = client.forecast(candles[:40], pred_len=4, seed=5)
    assert again.series[0].mean["close"] == undisturbed
    assert again.worker == worker.node
    assert _rss_mb(worker.process.pid) < growth_from_mb + MAX_GROWTH_MB
    note("messages", len(sent.ids) + sent.num_anonymous)
    note("results", num_results)
    note("errors", codes)
    note("nobody's", sent.num_anonymous)
    log = worker.log.read_text()
    assert MARK * 10 not in log
    assert "\x1b" not in log
    assert "\0" not in log
    assert max(map(len, log.splitlines())) < MAX_LINE_CHARS


def _rss_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split()[0]) / 1024
