"""The task ``kronos.feed.append``: the code of ``Feed.append``, for plain Celery clients."""

from typing import Any

from kronos_client.contract.errors import JobError
from kronos_client.contract.feed import FeedAppendJob
from kronos_client.contract.jobs import check_payload, read_fields
from kronos_client.contract.names import FEED_APPEND_TASK
from kronos_client.feeds.feed import Feed
from kronos_client.feeds.store import FeedLimits
from kronos_client.redis.connection import AWAY
from worker.app import app
from worker.celery_types import AnyTask
from worker.process import RETRY_DELAY_S
from worker.settings import get_settings
from worker.tasks.attempt import JOB_TASK, Requeued, job_of


@app.task(name=FEED_APPEND_TASK, **JOB_TASK)
def append(_self: AnyTask, /, *args: object, **kwargs: object) -> dict[str, Any]:
    """Append bars to a feed. Returns what they changed, or raises JobError.

    It has no claim: a second delivery finds the bars there.
    """
    settings = get_settings()
    limits = settings.limits().model_copy(update={"max_series": FeedLimits().max_series})
    job = read_fields(FeedAppendJob, job_of(args, kwargs), limits, check_payload)
    series = {item.id: item.model_dump(exclude={"id"}, exclude_none=True) for item in job.series}
    try:
        with Feed.open(job.feed, settings=settings) as feed:
            return feed.put_series(series, is_whole=job.replace).model_dump(mode="json")
    except JobError as error:
        if error.code not in AWAY:
            raise
        raise Requeued(error.message, delay_s=RETRY_DELAY_S) from None
