"""The gpu pool vanishes with jobs in its queue: CPU workers stand in, killed ones too, until it returns.

The GPU worker is an announcement: routing and standing in know GPU workers by nothing else.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from kronos_client.contract.errors import ErrorCode
from kronos_client.redis.routing import announce, withdraw
from kronos_client.testing import fake_worker
from tests.faults.accounting import Accounts
from tests.faults.conftest import MakeClient
from tests.faults.fleet import Fleet
from tests.faults.redis_under_fault import RedisUnderFault
from tests.waiting import WAIT_S, await_true, repeated

NODE = "gpu@test"
STATUS = fake_worker("gpu", node=NODE)


@contextmanager
def gpu_worker(redis: RedisUnderFault) -> Iterator[None]:
    """Announces itself as long as the block lasts, and takes no job."""
    announce(redis.connection, STATUS)
    try:
        with repeated(lambda: announce(redis.connection, STATUS), every_s=1):
            yield
    finally:
        withdraw(redis.connection, NODE)


def test_jobs_of_a_gpu_pool_that_vanished(
    fleet: Fleet, redis: RedisUnderFault, accounts: Accounts, make_client: MakeClient
):
    workers = [fleet.begin(KRONOS_GPU_GRACE_S="1", KRONOS_MAX_JOBS="4") for _ in range(2)]
    for worker in workers:
        worker.wait_until_ready()
    with gpu_worker(redis):
        client = make_client()
        plain = [accounts.submit(client, "long") for _ in range(10)]
        falling = [accounts.submit(client, "long", device="cuda") for _ in range(20)]
        strict = [accounts.submit(client, "long", device="cuda", allow_fallback=False) for _ in range(4)]
        assert {handle.queue for handle in plain + falling + strict} == {"gpu"}
    # A CPU worker that has begun to stand in is killed with jobs of the gpu queue in hand.
    await_true(lambda: any(len(accounts.in_hand(worker.node)) >= 2 for worker in workers), "one stands in")
    victim = max(workers, key=lambda worker: len(accounts.in_hand(worker.node)))
    victim.kill()
    (survivor,) = fleet.running
    accounts.assert_balanced(allowed={ErrorCode.NO_GPU_WORKER})
    metas = accounts.metas()
    for handle in falling:
        result = metas[handle.id]["result"]
        assert (result["device"], result["queue"]) == ("cpu", "gpu")
        assert "Falling back to CPU" in result["device_warning"]
        assert result["device_warning"] in result["warnings"]
    for handle in plain:
        assert (metas[handle.id]["status"], metas[handle.id]["result"]["queue"]) == ("SUCCESS", "gpu")
    assert accounts.codes()[ErrorCode.NO_GPU_WORKER] == len(strict)
    assert {metas[handle.id]["result"]["exc_message"][0] for handle in strict} == {ErrorCode.NO_GPU_WORKER}

    with gpu_worker(redis):
        await_true(lambda: "leaving queue gpu" in survivor.log.read_text(), "it leaves the queue")
        client = make_client()
        left = accounts.submit_many(client, "small", 5)
        here = [accounts.submit(client, "small", device="cpu") for _ in range(5)]
        assert all(handle.wait(WAIT_S).queue == "cpu" for handle in here)
        assert accounts.ended(handle.id for handle in left) == set()
        assert sum(redis.queued().values()) == len(left)
    accounts.assert_balanced(allowed={ErrorCode.NO_GPU_WORKER})
