"""Shares out slots between jobs, and suspends paths to make room. No torch."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kronos_model.engine.generation import Generation
from kronos_model.engine.prompts import Prompts
from kronos_model.engine.sequence import Sequence
from kronos_model.engine.shares import Job, Service, set_shares, weight_of
from kronos_model.engine.slots import SlotLedger

QUANTUM_BARS: Final = 16
"""A job without a slot gets slots of another job once it is this many bars of service behind it."""


class Suspension(NamedTuple):
    """Paths that leave these slots: a sequence, or one that was just cut off from ``running_as``."""

    sequence: Sequence
    running_as: Sequence
    slots: tuple[int, ...]


@dataclass
class _Job(Job):
    """A job, and what it may place next: suspended sequences, then paths that have not started."""

    running: list[Sequence] = field(default_factory=list)
    following: list[Sequence | Generation] = field(default_factory=list)


class Allocation:
    """The slots, the sequences that hold them, and the paths that wait for slots."""

    def __init__(self, num_slots: int, max_context: int, service: Service) -> None:
        self._max_context = max_context
        self._service = service
        self._slots = SlotLedger(num_slots)
        self._prompts = Prompts(num_slots, max_context)
        self._waiting: dict[Generation, None] = {}  # with paths that have not started, in order of arrival
        self._suspended: dict[Sequence, None] = {}
        self._holding: dict[Sequence, None] = {}
        self.has_changed = False  # since slots were last shared out

    @property
    def num_used(self) -> int:
        return self._slots.num_used

    @property
    def num_waiting(self) -> int:
        """Paths without a slot: not started, or suspended. Any thread may read it."""
        return sum(one.num_paths_waiting for one in self._waiting.copy()) + sum(
            one.num_paths for one in self._suspended.copy()
        )

    def add(self, generation: Generation) -> None:
        """Queue a generation's paths, behind the others of its job."""
        self._waiting[generation] = None
        self.has_changed = True

    def postpone(self, sequence: Sequence) -> None:
        """Take a sequence's slots; its paths start over later."""
        self.leave(sequence)
        sequence.start_over()
        self._suspended[sequence] = None

    def set_cached(self, sequence: Sequence) -> None:
        """Note that a sequence's prompt is cached, so that others of its generation may start."""
        if sequence.shares_prompt and self._prompts.set_cached(sequence):
            self.has_changed = True

    def holds(self, sequence: Sequence) -> bool:
        return sequence in self._holding

    def leave(self, sequence: Sequence) -> None:
        """Free the slots of a sequence, if it holds some."""
        if sequence in self._holding:
            del self._holding[sequence]
            self._slots.give_back(sequence.slots)
            if sequence.shares_prompt:
                self._prompts.leave(sequence)
            self.has_changed = True

    def drop(self, generation: Generation) -> None:
        """Forget a generation that ended or failed."""
        self._waiting.pop(generation, None)
        for sequence in [one for one in self._suspended if one.generation is generation]:
            del self._suspended[sequence]
        for sequence in [one for one in self._holding if one.generation is generation]:
            self.leave(sequence)
        self._prompts.drop(generation)
        self.has_changed = True

    def share_out(self, num_slots: int) -> tuple[list[Suspension], list[Sequence]]:
        """Give slots to the jobs that should have them, at most ``num_slots`` in all.

        Returns:
            What was suspended, and the sequences that got slots.
        """
        self.has_changed = False
        suspended: list[Suspension] = []
        placed: list[Sequence] = []
        jobs = self._jobs()
        set_shares(jobs, num_slots)

        def place(job: _Job, most: int) -> bool:
            sequence = self._place(job, min(most, num_slots - self._slots.num_used))
            placed.extend([] if sequence is None else [sequence])
            return sequence is not None

        # Each job gets its share, if necessary from jobs that hold more than theirs.
        wanting = [job for job in jobs if job.following]
        for job in sorted(wanting, key=lambda job: (job.rank, job.service)):
            while job.num_held < int(job.share) and self._next(job) is not None:
                num_due = int(job.share) - job.num_held
                num_lacking = self._slots.num_used + num_due - num_slots
                if num_lacking > 0:
                    suspended += self._take_from_richest(jobs, job, num_lacking)
                if not place(job, num_due):
                    break
        # Slots that are left: first one for each job that has none.
        by_service = sorted(wanting, key=lambda job: (job.service, job.rank))
        for job in by_service:
            if not job.num_held:
                place(job, 1)
        for job in by_service:
            while place(job, num_slots):
                pass
        # A job that still has none takes its turn from a job that had enough service.
        for job in by_service:
            if not job.num_held:
                suspended += self._take_a_turn(jobs, job)
                place(job, 1)
        return suspended, placed

    def _jobs(self) -> list[_Job]:
        jobs: dict[Hashable, _Job] = {}

        def job_of(generation: Generation) -> _Job:
            key = generation.job
            if key not in jobs:
                jobs[key] = _Job(generation.rank, self._service[key])
            return jobs[key]

        for sequence in self._holding:
            job = job_of(sequence.generation)
            job.running.append(sequence)
            job.num_held += sequence.num_paths
            job.num_wanted += sequence.num_paths
        for sequence in self._suspended:
            job = job_of(sequence.generation)
            job.following.append(sequence)
            job.num_wanted += sequence.num_paths
        for generation in self._waiting:
            job = job_of(generation)
            job.following.append(generation)
            job.num_wanted += generation.num_paths_waiting
        return list(jobs.values())

    def _next(self, job: _Job) -> Sequence | Generation | None:
        """What the job places next."""
        # Until the lookback is tokenized, only one sequence of a generation runs.
        starting = {one.generation for one in job.running if not one.generation.is_tokenized}
        for one in job.following:
            generation = one.generation if isinstance(one, Sequence) else one
            if generation not in starting and self._prompts.can_start(generation):
                return one
        return None

    def _place(self, job: _Job, most: int) -> Sequence | None:
        """Give at most ``most`` slots to a job; returns the sequence that got them."""
        following = self._next(job) if most > 0 else None
        if following is None:
            return None
        if isinstance(following, Sequence):
            sequence = following
            if sequence.num_paths > most:
                self._wait_again(job, sequence.split(sequence.num_paths - most))
            del self._suspended[sequence]
            job.following.remove(sequence)
        else:
            paths = following.start_paths(most)
            sequence = Sequence(following, len(paths), self._max_context, first_path=paths.start)
            if not following.num_paths_waiting:
                del self._waiting[following]
                job.following.remove(following)
        slots = self._slots.take(sequence.num_paths)
        if sequence.shares_prompt:
            prompt = self._prompts.join(sequence.generation)
            sequence.enter_slots(slots, prompt.slot, has_prompt=prompt.is_cached)
        else:
            sequence.enter_slots(slots, slots[0], has_prompt=sequence.num_generated > 0)
        self._holding[sequence] = None
        job.running.append(sequence)
        job.num_held += sequence.num_paths
        return sequence

    def _take_from_richest(self, jobs: list[_Job], waiting: _Job, most: int) -> list[Suspension]:
        """Suspend at most ``most`` paths of the job that is the most above its share."""
        most = min(most, self._num_may_suspend())
        over = [job for job in jobs if job.num_held > int(job.share) and _may_suspend(job, waiting)]
        if not over or not most:
            return []
        richest = max(over, key=lambda job: (job.rank, job.num_held - job.share))
        sequence = min(_may_suspend(richest, waiting), key=lambda one: (one.num_paths, one.num_generated))
        return [self._suspend(richest, sequence, min(most, richest.num_held - int(richest.share)))]

    def _take_a_turn(self, jobs: list[_Job], waiting: _Job) -> list[Suspension]:
        """Suspend a generation of the job with the most service, if it is far enough ahead of ``waiting``."""
        lacks_prompt = self._next(waiting) is None
        for job in sorted(jobs, key=lambda job: -job.service):
            if job.service - waiting.service < QUANTUM_BARS / weight_of(waiting.rank):
                break
            by_generation: dict[Generation, list[Sequence]] = {}
            for one in _may_suspend(job, waiting):
                if one.shares_prompt or not lacks_prompt:
                    by_generation.setdefault(one.generation, []).append(one)
            for sequences in by_generation.values():
                if sum(one.num_paths for one in sequences) <= self._num_may_suspend():
                    return [self._suspend(job, one, one.num_paths) for one in sequences]
        return []

    def _num_may_suspend(self) -> int:
        """Room for suspended paths in the host's memory: as many as there are slots."""
        return self._slots.num_slots - sum(one.num_paths for one in self._suspended if one.num_generated)

    def _suspend(self, job: _Job, sequence: Sequence, most: int) -> Suspension:
        """Suspend a sequence, or its last ``most`` paths if it has more."""
        suspended = sequence
        if sequence.num_paths > most:
            suspended = sequence.split(most)
            self._slots.give_back(suspended.slots)
            self.has_changed = True
        else:
            self.leave(sequence)
            job.running.remove(sequence)
        self._wait_again(job, suspended)
        job.num_held -= suspended.num_paths
        return Suspension(suspended, sequence, suspended.slots)

    def _wait_again(self, job: _Job, sequence: Sequence) -> None:
        self._suspended[sequence] = None
        job.following.insert(0, sequence)


def _may_suspend(job: _Job, waiting: _Job) -> list[Sequence]:
    """Sequences that can make room for a waiting job.

    For a job of the same class, only those that generated a bar in these slots: others would lose what was
    computed for them, again and again.
    """
    is_higher = waiting.rank < job.rank
    return [one for one in job.running if is_higher or one.num_generated > one.num_generated_before]
