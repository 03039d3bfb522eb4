"""What is read of a job that has no result."""

import asyncio

from kronos_client.contract.errors import ErrorCode
from kronos_client.contract.names import job_key, result_key
from kronos_client.core.result_store import RedisResultStore
from kronos_client.core.stored import NOTHING
from kronos_client.redis.admission import Admission
from kronos_client.redis.job_store import Ending, JobStore
from kronos_client.settings import ClientSettings
from tests.admitting import admit


def test_a_job_without_result_is_lost_expired_or_still_to_come(redis_server, redis):
    ttl_s = 50
    admission = Admission(redis, result_ttl_s=ttl_s, max_queue_jobs=10)
    records = JobStore(redis, ttl_s)

    def absence() -> str | None:
        async def read() -> str | None:
            store = RedisResultStore(
                ClientSettings.load(redis_url=redis_server.url, result_ttl_s=ttl_s), redis
            )
            (stored,) = await store.read(["a"])
            await store.close()
            assert stored._replace(absence=None) == NOTHING
            return stored.absence and stored.absence.code

        return asyncio.run(read())

    def submit() -> None:
        admit(admission, "a")

    assert absence() == ErrorCode.LOST
    submit()
    assert redis.ttl(job_key("a")) > 24 * 3600  # however long the queue is
    assert absence() is None
    records.end([Ending("a", b"{}")])
    redis.delete(result_key("a"))
    assert absence() is None  # its result may be on the way
    redis.hincrbyfloat(job_key("a"), "ended_at", -ttl_s - 1)  # as if it had ended before
    assert absence() == ErrorCode.RESULT_EXPIRED
    submit()
    assert absence() is None
