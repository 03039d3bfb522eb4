"""How tests take messages, and begin their jobs, one by one."""

from collections.abc import Sequence

from kronos_client.redis.job_store import Beginning, Begun, JobStore
from worker.broker.deliveries import Asked, Deliveries, Delivery


def take_one(
    deliveries: Deliveries,
    lists: Sequence[str],
    min_ages_s: Sequence[float] = (),
    *,
    holds_others: bool = False,
) -> Delivery | None:
    """As ``Deliveries.take_all``, of one message."""
    ages_s = [*min_ages_s, *[0.0] * (len(lists) - len(min_ages_s))]
    asked = {key: Asked(age_s) for key, age_s in zip(lists, ages_s, strict=True)}
    return next(iter(deliveries.take_all(asked, holds_others=holds_others)), None)


def begin_one(
    store: JobStore, job_id: str, state: str, tag: str, timeout_s: float, content: str = "", worker: str = ""
) -> Begun:
    """As ``JobStore.begin_all``, of one job; raises its error."""
    (answer,) = store.begin_all([Beginning(job_id, state, tag, content)], timeout_s, worker)
    if isinstance(answer, Exception):
        raise answer
    return answer
