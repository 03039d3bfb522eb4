"""Fair shares of slots between jobs. No torch.

A priority class gets ``CLASS_RATIO`` times the slots of the next class that has work, and the jobs of one
class get equal slots. What a job cannot use goes to the others (weighted max-min fairness). If there are
fewer slots than jobs, those of a class take turns (``fair_queue``), and so do the classes, by their shares.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kronos_model.engine.generation import PRIORITIES

CLASS_RATIO: Final = 8
"""Slots of a class for one of the next lower class, while both have work."""
WEIGHTS: Final = np.array([CLASS_RATIO ** (len(PRIORITIES) - 1 - rank) for rank in range(len(PRIORITIES))])
"""Of classes that have work, from the highest."""
QUANTUM_BARS: Final = 16
"""Bars that a job without a slot may fall behind before it gets that of another of its class; also the steps
that a class's turn takes."""
GOLDEN_RATIO: Final = (5**0.5 - 1) / 2
"""Its multiples without their whole parts lie evenly between 0 and 1, however many are taken."""


@dataclass(frozen=True)
class JobColumns:
    """What jobs hold and could use, each (jobs,). Those that want no slots get no share.

    Attributes:
        arrived: a number that grows with each new job.
        rank: of the priority class; 0 is the highest.
        service: bars that were computed for the job, by which jobs of a class take turns.
        held: slots.
        wanted: slots that it could use, with those that it holds.
    """

    arrived: NDArray[np.int64]
    rank: NDArray[np.int64]
    service: NDArray[np.float64]
    held: NDArray[np.int64]
    wanted: NDArray[np.int64]

    @cached_property
    def turn(self) -> NDArray[np.float64]:
        """The job of a class with the least is next. A holder keeps its slot until it is a quantum ahead."""
        return self.service - np.where(self.held > 0, QUANTUM_BARS, 0.0)


def fair_shares(jobs: JobColumns, num_slots: int) -> NDArray[np.float64]:
    """Each job's fair share of the slots."""
    classes = _by_class(jobs, jobs.wanted > 0)
    of_classes = _max_min(
        np.array([jobs.wanted[members].sum() for members in classes]),
        WEIGHTS[: len(classes)].astype(np.float64),
        num_slots,
    )
    shares = np.zeros(len(jobs.rank))
    for members, of_class in zip(classes, of_classes, strict=True):
        shares[members] = _max_min(jobs.wanted[members], np.ones(len(members)), of_class)
    return shares


def slot_targets(jobs: JobColumns, num_slots: int, turn: int = 0) -> NDArray[np.int64]:
    """How many slots each job should hold: its share in whole slots, and a part of what is left.

    ``turn`` decides which classes have the slots that they cannot divide. Over many turns each has its share.
    """
    shares = fair_shares(jobs, num_slots)
    targets = (shares + 1e-9).astype(np.int64)
    without = _by_class(jobs, (targets == 0) & (jobs.wanted > 0))
    if without:
        quotas = _max_min(
            np.array([len(members) for members in without]),
            np.array([shares[members].sum() for members in without]),
            num_slots - targets.sum(),
        )
        # Systematic sampling: each class gets its quota, rounded up or down, and together they get all slots.
        ends = np.floor(np.cumsum(quotas) + turn * GOLDEN_RATIO % 1 + 1e-9).astype(np.int64)
        for members, num in zip(without, np.diff(ends, prepend=0), strict=True):
            order = np.lexsort((jobs.arrived[members], jobs.turn[members]))
            targets[members[order[:num]]] = 1
    for most, keys in (
        (jobs.held, (jobs.arrived,)),
        (jobs.wanted, (jobs.arrived, jobs.service, jobs.rank)),
    ):
        left = num_slots - targets.sum()
        lacking = np.maximum(most - targets, 0)
        if left > 0 and lacking.any():
            order = np.lexsort(keys)
            targets[order] += np.diff(np.minimum(np.cumsum(lacking[order]), left), prepend=0)
    return targets


def _by_class(jobs: JobColumns, are_meant: NDArray[np.bool_]) -> list[NDArray[np.int64]]:
    """The indices of some jobs by class, the highest first, of classes that have any of them."""
    classes = (np.flatnonzero(are_meant & (jobs.rank == rank)) for rank in range(len(PRIORITIES)))
    return [members for members in classes if len(members)]


def _max_min(wanted: NDArray[np.int64], weights: NDArray[np.float64], total: float) -> NDArray[np.float64]:
    """Divide ``total`` by weight; nobody gets more than wanted, and the others share what is left."""
    order = np.argsort(wanted / weights)
    ordered, ordered_weights = wanted[order], weights[order]
    left = total - (np.cumsum(ordered) - ordered)
    by_weight = left / np.cumsum(ordered_weights[::-1])[::-1]
    lacks = ordered > by_weight * ordered_weights
    level = by_weight[lacks.argmax()] if lacks.any() else np.inf
    return np.minimum(wanted, level * weights)
