"""Gives slots to jobs by their shares, and suspends paths that must make room. No torch.

A slot is room for the keys and values of one path's window. Slots are handed out lowest first, and next to
each other if possible: neighbours are read in one go.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain
from operator import attrgetter
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kronos_model.engine.generation import PRIORITIES, Generation
from kronos_model.engine.scheduling.shares import Job, JobColumns, Jobs, slot_targets
from kronos_model.engine.sequence import Sequence

PLACES_PER_PATH: Final = 2
"""Slots in the cache: one for the path, and one for a prompt, as each path may read another."""
MAX_SUSPENDED_AT_ONCE: Final = 8
"""Paths that are suspended before one step: to copy the state of one takes some milliseconds."""
MIN_KEPT: Final = 64
"""The most suspended paths whose state is kept; as many as slots if that is more. Others start over."""


class SlotLedger:
    """``num_slots`` slots, numbered from ``first``."""

    def __init__(self, num_slots: int, first: int = 0) -> None:
        self.num_slots = num_slots
        self.num_used = 0
        self._free = set(range(first, first + num_slots))

    def take(self, count: int) -> tuple[int, ...]:
        """Take ``count`` slots; raises ValueError if fewer are free."""
        if count > len(self._free):
            raise ValueError(f"{count} slots are wanted and {len(self._free)} are free")
        free = sorted(self._free)
        chosen = free[:count]
        for last, slot in enumerate(free[count - 1 :], start=count):
            if slot - free[last - count] == count - 1:  # next to each other
                chosen = free[last - count : last]
                break
        self._free.difference_update(chosen)
        self.num_used += count
        return tuple(chosen)

    def give_back(self, slots: tuple[int, ...]) -> None:
        """Return slots that were taken."""
        self._free.update(slots)
        self.num_used -= len(slots)


@dataclass(eq=False)
class Prompt:
    """A prompt's slot, the number of sequences that read it, and whether all of it is cached."""

    slot: int
    num_users: int = 0
    is_cached: bool = False


class Prompts:
    """Slots for prompts, behind those for paths.

    All sequences of a generation share a prompt, if its window never slides. It stays while nothing else
    needs its slot. If the window slides, each sequence changes its own copy.
    """

    def __init__(self, num_slots: int, max_context: int) -> None:
        self._max_context = max_context
        self._ledger = SlotLedger((PLACES_PER_PATH - 1) * num_slots, first=num_slots)
        self._by_slot: dict[int, Prompt] = {}
        self._shared: dict[Generation, Prompt] = {}

    def is_being_cached(self, generation: Generation) -> bool:
        """Whether one of the generation's sequences is caching the prompt that all of them share."""
        prompt = self._shared.get(generation)
        return prompt is not None and prompt.num_users > 0 and not prompt.is_cached

    def join(self, generation: Generation) -> Prompt:
        """The prompt for another sequence of a generation. An unused one makes room for it."""
        prompt = self._shared.get(generation)
        if prompt is None:
            if self._ledger.num_used == self._ledger.num_slots:
                self.drop(next(owner for owner, prompt in self._shared.items() if not prompt.num_users))
            (slot,) = self._ledger.take(1)
            prompt = self._by_slot[slot] = Prompt(slot)
            request = generation.request
            if min(request.lookback, self._max_context) - 1 + request.horizon <= self._max_context:
                self._shared[generation] = prompt
        prompt.num_users += 1
        return prompt

    def set_cached(self, sequence: Sequence) -> bool:
        """Note that a sequence's prompt is cached; returns whether that is new."""
        prompt = self._by_slot[sequence.prompt_slot]
        is_new = not prompt.is_cached
        prompt.is_cached = True
        return is_new

    def leave(self, sequence: Sequence) -> None:
        """Note that a sequence no longer reads its prompt."""
        prompt = self._by_slot[sequence.prompt_slot]
        prompt.num_users -= 1
        if self._shared.get(sequence.generation) is not prompt:
            self._free(prompt)

    def drop(self, generation: Generation) -> None:
        """Free the shared prompt of a generation, if it has one."""
        prompt = self._shared.pop(generation, None)
        if prompt is not None:
            self._free(prompt)

    def _free(self, prompt: Prompt) -> None:
        del self._by_slot[prompt.slot]
        self._ledger.give_back((prompt.slot,))


class Suspension(NamedTuple):
    """Paths that leave these slots: a whole sequence, or one that was just cut off from ``cut_from``.

    ``keeps_state``: whether they go on where they stopped, else they start over.
    """

    sequence: Sequence
    cut_from: Sequence
    slots: tuple[int, ...]
    keeps_state: bool


class Allocation:
    """The slots, the sequences that hold them, and all that waits for slots.

    ``num_spare`` of the slots are for jobs that want no more than that: larger ones need not make room.
    """

    def __init__(self, num_slots: int, max_context: int, jobs: Jobs, num_spare: int) -> None:
        self._max_context = max_context
        self._num_spare = num_spare
        self._jobs = jobs
        self.slots = SlotLedger(num_slots)
        self._prompts = Prompts(num_slots, max_context)
        self.has_changed = False  # since slots were last shared out

    def add(self, generation: Generation) -> None:
        """Let a generation's waiting paths have slots; behind the others of its job."""
        job = self._jobs.join(generation)
        job.waiting[generation] = None
        self._jobs.count(job, waiting=generation.num_paths_waiting)
        self.has_changed = True

    def postpone(self, sequence: Sequence) -> None:
        """Take a sequence's slots; its paths start over later."""
        self.leave(sequence)
        sequence.start_over()
        self._wait(sequence)

    def set_cached(self, sequence: Sequence) -> None:
        """Note that the prompt that a sequence shares is cached: others of its generation may start."""
        if self._prompts.set_cached(sequence):
            self.has_changed = True

    def leave(self, sequence: Sequence) -> None:
        """Free the slots of a sequence, if it holds some."""
        job = self._jobs[sequence.generation]
        if sequence in job.running:
            del job.running[sequence]
            self._free(job, sequence)
            if sequence.shares_prompt:
                self._prompts.leave(sequence)

    def drop(self, generation: Generation) -> None:
        """Forget a generation that ended or failed."""
        job = self._jobs[generation]
        if generation in job.waiting:
            del job.waiting[generation]
            self._jobs.count(job, waiting=-generation.num_paths_waiting)
        for sequence in generation.sequences:
            if sequence in job.suspended:
                del job.suspended[sequence]
                self._jobs.count(job, waiting=-sequence.num_paths)
            self.leave(sequence)
        self._jobs.leave(generation)
        self._prompts.drop(generation)
        self.has_changed = True

    def share_out(self, num_slots: int, turn: int) -> tuple[list[Suspension], list[Sequence]]:
        """Give slots to the jobs that should have them, at most ``num_slots`` in all.

        ``turn`` is that of ``slot_targets``.

        Returns:
            What was suspended, and the sequences that got slots.
        """
        num_shared = self.slots.num_slots - self._num_spare
        is_enough_for_all = self._jobs.num_waiting <= min(num_slots, num_shared) - self.slots.num_used
        columns = self._jobs.columns()
        targets = columns.wanted if is_enough_for_all else self._targets(columns, num_slots, turn)
        num_slots = max(int(targets.sum()), min(num_slots, num_shared))
        change = targets - columns.held
        lacking: dict[Job, int] = {}
        highest_rank = len(PRIORITIES)
        num_lacking = self.slots.num_used - num_slots  # beyond the slots that are free
        for job, lacks in self._jobs.above_zero(change, (columns.arrived, columns.turn, columns.rank)):
            if self._next(job) is not None:
                lacking[job] = lacks
                highest_rank = min(highest_rank, job.rank)
                num_lacking += lacks
                if num_lacking >= MAX_SUSPENDED_AT_ONCE:
                    break
        suspended: list[Suspension] = []
        if num_lacking > 0 and lacking:
            excess = self._jobs.above_zero(-change, (columns.arrived, change, -columns.rank))
            suspended = self._make_room(excess, highest_rank, min(num_lacking, MAX_SUSPENDED_AT_ONCE))
        placed = []
        for takes_more in (False, True):
            for job in lacking:
                while (
                    most := min(num_slots if takes_more else lacking[job], num_slots - self.slots.num_used)
                ) > 0:
                    sequence = self._place(job, most)
                    if sequence is None:
                        break
                    lacking[job] -= sequence.num_paths
                    placed.append(sequence)
        for suspension in suspended:
            self._wait(suspension.sequence)
        is_cut_short = num_lacking >= MAX_SUSPENDED_AT_ONCE
        self.has_changed = is_cut_short or max(lacking.values(), default=0) > 0
        return suspended, placed

    def _targets(self, columns: JobColumns, num_slots: int, turn: int) -> NDArray[np.int64]:
        """How many slots each job should hold: small jobs have the spare ones, as far as they go."""
        num_spare = max(0, num_slots - (self.slots.num_slots - self._num_spare))
        keys = (columns.arrived, columns.turn, columns.rank)
        of_small = np.where(columns.wanted <= num_spare, columns.wanted, 0)
        order = np.lexsort(keys)
        of_small[order] *= np.cumsum(of_small[order]) <= num_spare
        others = replace(columns, wanted=columns.wanted - of_small)
        return of_small + slot_targets(others, num_slots - num_spare, turn)

    def _free(self, job: Job, sequence: Sequence) -> None:
        self.slots.give_back(sequence.slots)
        self._jobs.count(job, held=-sequence.num_paths)
        self.has_changed = True

    def _wait(self, sequence: Sequence) -> None:
        job = self._jobs[sequence.generation]
        job.suspended[sequence] = None
        self._jobs.count(job, waiting=sequence.num_paths)

    def _next(self, job: Job) -> Sequence | Generation | None:
        """What the job places next. One sequence of a generation caches the prompt for all."""
        candidates: chain[Sequence | Generation] = chain(job.suspended, job.waiting)
        for following in candidates:
            generation = following.generation if isinstance(following, Sequence) else following
            is_starting = not generation.is_tokenized and not job.running.keys().isdisjoint(
                generation.sequences
            )
            if not (is_starting or self._prompts.is_being_cached(generation)):
                return following
        return None

    def _place(self, job: Job, most: int) -> Sequence | None:
        """Give at most ``most`` slots to a job; the sequence that got them."""
        following = self._next(job)
        if following is None:
            return None
        if isinstance(following, Sequence):
            sequence = following
            if sequence.num_paths > most:
                job.suspended[sequence.split(sequence.num_paths - most)] = None
            del job.suspended[sequence]
        else:
            paths = following.start_paths(most)
            sequence = Sequence(following, len(paths), self._max_context, first_path=paths.start)
            if not following.num_paths_waiting:
                del job.waiting[following]
        slots = self.slots.take(sequence.num_paths)
        if sequence.shares_prompt:
            prompt = self._prompts.join(sequence.generation)
            sequence.enter_slots(slots, prompt.slot, has_prompt=prompt.is_cached)
        else:
            sequence.enter_slots(slots, slots[0], has_prompt=sequence.num_generated > 0)
        job.running[sequence] = None
        self._jobs.count(job, held=sequence.num_paths, waiting=-sequence.num_paths)
        return sequence

    def _make_room(
        self, excess: Iterable[tuple[Job, int]], highest_rank: int, num_paths: int
    ) -> list[Suspension]:
        """Suspend paths of the jobs that hold more than they should; ``excess`` is how many more."""
        suspended: list[Suspension] = []
        num_kept = self._jobs.num_suspended_paths()
        for job, num_more in excess:
            if num_paths <= 0:
                break
            is_lower = highest_rank < job.rank
            for sequence in sorted(job.running, key=attrgetter("num_paths", "num_generated")):
                most = min(num_paths, num_more, sequence.num_paths)
                keeps_state = num_kept + most <= max(MIN_KEPT, self.slots.num_slots)
                has_moved = keeps_state and sequence.num_generated > sequence.num_generated_before
                if not has_moved:
                    # It would lose what was computed. Only a job of a higher class may cause that, but
                    # for the last slot of a class: its path would start over in each turn of the class.
                    most = min(most, self._jobs.num_held(job.rank) - 1) if is_lower else 0
                if most > 0:
                    suspended.append(self._suspend(job, sequence, most, keeps_state))
                    num_paths -= most
                    num_more -= most
                    num_kept += most
        return suspended

    def _suspend(self, job: Job, sequence: Sequence, most: int, keeps_state: bool) -> Suspension:
        """Suspend the last ``most`` paths of a sequence."""
        if sequence.num_paths > most:
            suspended = sequence.split(most)
            self._free(job, suspended)
        else:
            suspended = sequence
            self.leave(sequence)
        if not keeps_state:
            suspended.start_over()
        return Suspension(suspended, sequence, suspended.slots, keeps_state)
