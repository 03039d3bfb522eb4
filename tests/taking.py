"""How tests take messages one by one."""

from collections.abc import Sequence

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
