"""Who has slots: shares them out between jobs, and suspends paths that must make room. No torch."""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kronos_model.engine.generation import Generation
from kronos_model.engine.scheduling.prompts import Prompts
from kronos_model.engine.scheduling.shares import JobShare, Service, set_targets
from kronos_model.engine.scheduling.slots import SlotLedger
from kronos_model.engine.sequence import Sequence

MAX_SUSPENDED_AT_ONCE: Final = 8
"""Paths that are suspended before one step: to copy the state of one takes some milliseconds."""
MIN_KEPT: Final = 64
"""Suspended paths whose state is kept, or as many as there are slots if that is more. Others start over."""


class Suspension(NamedTuple):
    """Paths that leave these slots: a whole sequence, or one that was just cut off from ``cut_from``.

    ``keeps_state``: whether they go on where they stopped, else they start over.
    """

    sequence: Sequence
    cut_from: Sequence
    slots: tuple[int, ...]
    keeps_state: bool


@dataclass
class _Job(JobShare):
    """A job with its sequences, and what it places next: what is suspended, then what has not started."""

    running: list[Sequence] = field(default_factory=list)
    following: list[Sequence | Generation] = field(default_factory=list)

    @property
    def num_lacking(self) -> int:
        return max(0, self.target - self.num_held)


class Allocation:
    """The slots, the sequences that hold them, and all that waits for slots.

    ``num_spare`` of the slots are for jobs that want no more than that: larger ones need not make room.
    """

    def __init__(self, num_slots: int, max_context: int, service: Service, num_spare: int) -> None:
        self._max_context = max_context
        self._num_spare = num_spare
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
        """Paths that have no slot yet, or no longer. Any thread may read it."""
        return sum(one.num_paths_waiting for one in self._waiting.copy()) + sum(
            one.num_paths for one in self._suspended.copy()
        )

    def add(self, generation: Generation) -> None:
        """Let a generation's waiting paths have slots; behind the others of its job."""
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
        for sequence in generation.sequences:
            self._suspended.pop(sequence, None)
            self.leave(sequence)
        self._prompts.drop(generation)
        self.has_changed = True

    def share_out(self, num_slots: int) -> tuple[list[Suspension], list[Sequence]]:
        """Give slots to the jobs that should have them, at most ``num_slots`` in all.

        Returns:
            What was suspended, and the sequences that got slots.
        """
        self.has_changed = False
        num_free = min(num_slots, self._slots.num_slots - self._num_spare) - self._slots.num_used
        is_enough_for_all = self.num_waiting <= num_free
        if is_enough_for_all:
            self._service.catch_up_all()
        # If all that waits gets slots, it does not matter what others hold.
        jobs = self._jobs(() if is_enough_for_all else self._holding)
        num_of_small = sum(job.num_wanted for job in jobs if job.num_wanted <= self._num_spare)
        num_slots = min(num_slots, self._slots.num_slots - self._num_spare + num_of_small)
        set_targets(jobs, num_slots)
        lacking = sorted(
            (job for job in jobs if job.num_lacking and self._next(job) is not None),
            key=lambda job: (job.rank, job.turn),
        )
        num_to_free = sum(job.num_lacking for job in lacking) + self._slots.num_used - num_slots
        suspended = self._make_room(jobs, lacking, num_to_free) if lacking else []
        placed = []
        for most_of in (lambda job: job.num_lacking, lambda job: num_slots):
            for job in lacking:
                while (most := min(most_of(job), num_slots - self._slots.num_used)) > 0:
                    sequence = self._place(job, most)
                    if sequence is None:
                        break
                    placed.append(sequence)
        for suspension in suspended:
            self._suspended[suspension.sequence] = None
        self.has_changed = any(job.num_lacking for job in lacking)
        return suspended, placed

    def _jobs(self, holding: Iterable[Sequence]) -> list[_Job]:
        jobs: dict[Hashable, _Job] = {}

        def job_of(generation: Generation) -> _Job:
            key = generation.job
            if key not in jobs:
                jobs[key] = _Job(generation.rank, self._service[key])
            return jobs[key]

        for sequence in holding:
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
        for key, job in jobs.items():
            if not job.following:
                self._service.catch_up(key)
        return list(jobs.values())

    def _next(self, job: _Job) -> Sequence | Generation | None:
        """What the job places next. One sequence of a generation caches the prompt for all."""
        for one in job.following:
            generation = one.generation if isinstance(one, Sequence) else one
            is_starting = not generation.is_tokenized and any(
                sequence in self._holding for sequence in generation.sequences
            )
            if not (is_starting or self._prompts.is_being_cached(generation)):
                return one
        return None

    def _place(self, job: _Job, most: int) -> Sequence | None:
        """Give at most ``most`` slots to a job; the sequence that got them."""
        following = self._next(job)
        if following is None:
            return None
        if isinstance(following, Sequence):
            sequence = following
            if sequence.num_paths > most:
                rest = sequence.split(sequence.num_paths - most)
                self._suspended[rest] = None
                job.following.insert(1 + job.following.index(sequence), rest)
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

    def _make_room(self, jobs: list[_Job], lacking: list[_Job], num_paths: int) -> list[Suspension]:
        """Suspend paths of the jobs that hold more than they should, of the lowest class first."""
        highest = min(job.rank for job in lacking)
        num_kept = sum(one.num_paths for one in self._suspended if one.num_generated)
        num_paths = min(num_paths, MAX_SUSPENDED_AT_ONCE)
        suspended: list[Suspension] = []
        holding_more = [job for job in jobs if job.num_held > job.target]
        for job in sorted(holding_more, key=lambda job: (-job.rank, job.target - job.num_held)):
            is_lower = highest < job.rank
            for sequence in sorted(job.running, key=lambda one: (one.num_paths, one.num_generated)):
                most = min(num_paths, job.num_held - job.target, sequence.num_paths)
                keeps_state = num_kept + most <= max(MIN_KEPT, self._slots.num_slots)
                # Of its own class, a job does not stop what would lose all that was computed for it.
                has_moved = keeps_state and sequence.num_generated > sequence.num_generated_before
                if most > 0 and (is_lower or has_moved):
                    suspended.append(self._suspend(job, sequence, most, keeps_state))
                    num_paths -= most
                    num_kept += most
        return suspended

    def _suspend(self, job: _Job, sequence: Sequence, most: int, keeps_state: bool) -> Suspension:
        """Suspend the last ``most`` paths of a sequence."""
        if sequence.num_paths > most:
            suspended = sequence.split(most)
            self._slots.give_back(suspended.slots)
        else:
            suspended = sequence
            self.leave(sequence)
            job.running.remove(sequence)
        job.num_held -= most
        return Suspension(suspended, sequence, suspended.slots, keeps_state)
