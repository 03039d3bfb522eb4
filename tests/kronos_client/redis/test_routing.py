"""Announcements of workers, and which queue a job goes to because of them."""

import json
import time

import pytest
from redis.exceptions import OutOfMemoryError

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import (
    BACKTEST_TASK,
    CPU_FINETUNE_QUEUE,
    CPU_QUEUE,
    FINETUNE_TASK,
    FORECAST_TASK,
    GPU_FINETUNE_QUEUE,
    GPU_QUEUE,
    STATUS_TASK,
    worker_key,
)
from kronos_client.contract.worker_status import AnyWorkerStatus, State
from kronos_client.redis import routing
from kronos_client.redis.queues import QueueNames
from kronos_client.redis.routing import (
    WORKERS_KEY,
    TaskRouter,
    announce,
    choose_queue,
    is_gpu_ready,
    live_workers,
    withdraw,
)
from kronos_client.testing import fake_worker


def worker(queue: str, state: State = "ready", node: str = "a@1") -> AnyWorkerStatus:
    return fake_worker(queue, state, node=node)


POOLS = {
    "none": [],
    "cpu only": [worker(CPU_QUEUE)],
    "gpu loading": [worker(CPU_QUEUE), worker(GPU_QUEUE, "loading")],
    "gpu draining": [worker(CPU_QUEUE), worker(GPU_QUEUE, "draining")],
    "gpu ready": [worker(CPU_QUEUE), worker(GPU_QUEUE, "loading"), worker(GPU_QUEUE)],
}
GPU_DEVICES = ("cuda", "cuda:0", "cuda:7", "mps")


@pytest.mark.parametrize("allow_fallback", [True, False])
@pytest.mark.parametrize("device", ["auto", "cpu", *GPU_DEVICES])
@pytest.mark.parametrize("pool", POOLS)
def test_the_queue_of_every_device_fallback_and_pool(pool, device, allow_fallback):
    if device in GPU_DEVICES and pool != "gpu ready" and not allow_fallback:
        with pytest.raises(JobError) as refused:
            choose_queue(device, allow_fallback, POOLS[pool])
        assert (refused.value.code, refused.value.field) == (ErrorCode.NO_GPU_WORKER, "device")
        assert repr(device) in refused.value.message
        return
    expected = GPU_QUEUE if pool == "gpu ready" and device != "cpu" else CPU_QUEUE
    assert choose_queue(device, allow_fallback, POOLS[pool]) == expected


@pytest.mark.parametrize("allow_fallback", [True, False])
@pytest.mark.parametrize("device", ["auto", "cpu", *GPU_DEVICES])
@pytest.mark.parametrize("is_ready", [True, False])
def test_finetuning_goes_to_finetuning_workers_only(is_ready, device, allow_fallback):
    state = "ready" if is_ready else "loading"
    pool = [worker(GPU_QUEUE), worker(CPU_FINETUNE_QUEUE), worker(GPU_FINETUNE_QUEUE, state)]
    if device in GPU_DEVICES and not is_ready and not allow_fallback:
        with pytest.raises(JobError, match="GPU worker for finetuning") as refused:
            choose_queue(device, allow_fallback, pool, FINETUNE_TASK)
        assert refused.value.code == ErrorCode.NO_GPU_WORKER
        return
    expected = GPU_FINETUNE_QUEUE if is_ready and device != "cpu" else CPU_FINETUNE_QUEUE
    assert choose_queue(device, allow_fallback, pool, FINETUNE_TASK) == expected
    assert choose_queue("auto", True, pool[1:]) == CPU_QUEUE


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (("ready", "ready"), CPU_FINETUNE_QUEUE), (("draining", "ready"), GPU_FINETUNE_QUEUE),
        (("draining", "loading"), CPU_FINETUNE_QUEUE),
    ],
)  # fmt: skip
def test_backtests_leave_gpu_workers_to_training_if_they_can(states, expected):
    pool = list(map(worker, (CPU_FINETUNE_QUEUE, GPU_FINETUNE_QUEUE), states))
    assert choose_queue("auto", True, pool, BACKTEST_TASK) == expected


def test_announcements_are_read_back_in_the_order_of_their_nodes(redis):
    statuses = [worker(CPU_QUEUE, node=node) for node in ("a@1", "b@1", "c@1")]
    for status in reversed(statuses):
        announce(redis, status)
    assert live_workers(redis) == statuses
    assert 0 < redis.ttl(worker_key("a@1")) <= routing.ANNOUNCEMENT_TTL_S
    # Renewed more than once in its life, so that one lost renewal does not take a worker away.
    assert 2 * routing.ANNOUNCEMENT_INTERVAL_S < routing.ANNOUNCEMENT_TTL_S


def test_a_later_announcement_replaces_the_one_before(redis):
    announce(redis, worker(GPU_QUEUE, "loading"))
    assert not is_gpu_ready(live_workers(redis))
    announce(redis, worker(GPU_QUEUE, "ready"))
    assert is_gpu_ready(live_workers(redis))
    assert len(live_workers(redis)) == 1


def test_a_worker_is_announced_in_a_full_redis(redis):
    redis.config_set("maxmemory", 1)
    try:
        with pytest.raises(OutOfMemoryError):
            redis.set("a", "b")
        for _ in range(2):  # a new worker, and a known one
            announce(redis, worker(CPU_QUEUE))
    finally:
        redis.config_set("maxmemory", 0)
    assert live_workers(redis) == [worker(CPU_QUEUE)]


def test_a_worker_with_a_problem_is_not_ready(redis):
    announce(redis, fake_worker(GPU_QUEUE, problem="Redis is full"))
    (found,) = live_workers(redis)
    assert (found.state, found.condition) == ("ready", "not ready: Redis is full")
    assert not is_gpu_ready([found])


def test_an_announcement_that_is_not_renewed_expires(redis):
    announce(redis, worker(GPU_QUEUE))
    assert len(live_workers(redis)) == 1
    (announcement,) = redis.scan_iter(_type="string")
    assert 0 < redis.ttl(announcement) <= routing.ANNOUNCEMENT_TTL_S
    redis.delete(announcement)  # as Redis does then
    assert live_workers(redis) == []
    assert redis.zrange(WORKERS_KEY, 0, -1) == ["a@1"]  # the index alone keeps nobody alive


def test_a_withdrawn_worker_is_gone_at_once_and_the_others_stay(redis):
    announce(redis, worker(CPU_QUEUE))
    announce(redis, worker(CPU_QUEUE, node="b@1"))
    withdraw(redis, "a@1")
    assert [status.node for status in live_workers(redis)] == ["b@1"]
    assert redis.zrange(WORKERS_KEY, 0, -1) == ["b@1"]


def test_what_a_newer_worker_says_in_addition_is_kept(redis):
    announce(redis, fake_worker(CPU_QUEUE, node="new@1", colour="blue"))
    (status,) = live_workers(redis)
    assert status.as_json()["colour"] == "blue"


@pytest.mark.parametrize(
    "change",
    [
        {"state": "asleep"},
        {"role": "cook"},
        {"queue": 7},
        {"jobs_done": "many"},
        {"device": None},
        {"jobs_per_s": float("nan")},
    ],
)
def test_what_is_no_status_is_left_out_and_warned_of_once(redis, change, caplog):
    announce(redis, worker(CPU_QUEUE))
    announced = fake_worker(CPU_QUEUE, node=f"odd@{change}").as_json() | change
    for text in (json.dumps(announced), "{", "[]", b"\xff\xfe"):
        redis.set(worker_key(announced["node"]), text)
        redis.zadd(WORKERS_KEY, {announced["node"]: time.time()})
        for _ in range(2):
            assert [status.node for status in live_workers(redis)] == ["a@1"]
    warned = [record for record in caplog.records if "is ignored" in record.message]
    assert len(warned) == len({record.message for record in warned}) == 4
    assert next(iter(change)) in warned[0].message


def test_a_list_of_workers_that_is_not_readable_stops_nobody(redis, caplog):
    announce(redis, worker(CPU_QUEUE))
    redis.zadd(WORKERS_KEY, {b"\xff\xfe": time.time()})
    assert [status.node for status in live_workers(redis)] == ["a@1"]
    assert redis.ping()
    redis.delete(WORKERS_KEY)
    redis.set(WORKERS_KEY, "another app's")
    assert live_workers(redis) == []
    assert "kronos:workers is not a sorted set: delete it" in caplog.text


def test_the_index_forgets_workers_of_long_ago(redis):
    redis.zadd(WORKERS_KEY, {"old@1": time.time() - 25 * 3600})
    announce(redis, worker(CPU_QUEUE))
    assert redis.zrange(WORKERS_KEY, 0, -1) == ["a@1"]


@pytest.fixture
def router(redis_server):
    return TaskRouter(redis_server.url)


def route(router: TaskRouter, name: str, kwargs: object = None) -> str | None:
    routed = router(name, [], kwargs, {}, task=None)
    return None if routed is None else routed["queue"]


def test_forecasts_are_routed_by_their_device_and_who_is_ready(redis, router):
    assert route(router, FORECAST_TASK, {"job": {"device": "auto"}}) == CPU_QUEUE
    announce(redis, worker(GPU_QUEUE))
    assert route(router, FORECAST_TASK, {"job": {"device": "auto"}}) == GPU_QUEUE
    assert route(router, FORECAST_TASK, {"job": {"device": "cuda:1", "allow_fallback": False}}) == GPU_QUEUE
    assert route(router, FORECAST_TASK, {"job": {"device": "cpu"}}) == CPU_QUEUE
    assert route(router, FORECAST_TASK, {"job": {}}) == GPU_QUEUE


def test_a_prefix_is_in_the_names_of_all_queues(redis, redis_server):
    names = QueueNames("app.")
    assert names.all == ("app.cpu", "app.gpu", "app.cpu.finetune", "app.gpu.finetune")
    router = TaskRouter(redis_server.url, names)
    announce(redis, worker(GPU_QUEUE))
    assert route(router, FORECAST_TASK, {"job": {}}) == "app.cpu"
    announce(redis, worker("app.gpu", node="b@1"))
    assert route(router, FORECAST_TASK, {"job": {}}) == "app.gpu"
    assert route(router, FINETUNE_TASK, {"job": {"device": "cpu"}}) == "app.cpu.finetune"
    assert route(router, STATUS_TASK) == "app.gpu"


@pytest.mark.parametrize(
    "kwargs", [None, {}, [], "job", {"job": None}, {"job": [1]}, {"job": {"device": ["x"]}}, {"job": "{}"}]
)
def test_malformed_jobs_reach_a_worker_that_answers_them(redis, router, kwargs):
    assert route(router, FORECAST_TASK, kwargs) == CPU_QUEUE


def test_status_goes_to_whoever_is_ready(redis, router):
    assert route(router, STATUS_TASK, {}) == CPU_QUEUE
    announce(redis, worker(CPU_QUEUE, "loading"))
    announce(redis, worker(GPU_QUEUE, node="b@1"))
    assert route(router, STATUS_TASK, {}) == GPU_QUEUE


def test_status_does_not_wait_for_training(redis, router):
    announce(redis, worker(CPU_FINETUNE_QUEUE))
    assert route(router, STATUS_TASK, {}) == CPU_QUEUE
    announce(redis, worker(GPU_QUEUE, node="b@1"))
    assert route(router, STATUS_TASK, {}) == GPU_QUEUE


def test_other_apps_tasks_are_left_alone_without_asking_redis():
    nowhere = TaskRouter("redis://127.0.0.1:1/0")
    assert route(nowhere, "shop.send_mail", {"job": {"device": "cuda"}}) is None
    # Nor does a job that names the CPU wait for it.
    assert route(nowhere, FORECAST_TASK, {"job": {"device": "cpu"}}) == CPU_QUEUE


@pytest.mark.parametrize("name", [FORECAST_TASK, STATUS_TASK])
def test_a_queue_that_was_named_is_left_alone_without_asking_redis(name):
    nowhere = TaskRouter("redis://127.0.0.1:1/0")
    assert nowhere(name, (), {"job": {"device": "auto"}}, {"queue": "gpu"}) is None


@pytest.mark.parametrize(
    ("wanted", "actual", "expected"),
    [
        ("cpu", "cpu", None),
        ("auto", "cpu", "own"),
        ("auto", "cuda:0", "own"),
        ("cuda", "cuda:1", "own"),
        ("cuda:1", "cuda:1", "own"),
        ("cuda:0", "cuda:1", "Device 'cuda:0' requested but this worker runs on 'cuda:1'."),
        ("cpu", "cuda:0", "Device 'cpu' requested but this worker runs on 'cuda:0'."),
        ("cuda:0", "cpu", "CUDA device 'cuda:0' requested but no GPU worker is ready. Falling back to CPU."),
        ("mps", "cpu", "MPS device 'mps' requested but no GPU worker is ready. Falling back to CPU."),
    ],
)
def test_a_job_is_told_why_it_runs_elsewhere(wanted, actual, expected):
    seen = routing.why_elsewhere(wanted, actual, "own", allow_fallback=True)
    assert seen == expected if expected in (None, "own") else seen.startswith(expected)


def test_a_job_that_forbids_falling_back_is_refused_on_the_cpu():
    with pytest.raises(JobError) as refused:
        routing.why_elsewhere("cuda", "cpu", None, allow_fallback=False, role="finetune")
    assert refused.value.code == "NO_GPU_WORKER"
    assert "for finetuning" in refused.value.message
