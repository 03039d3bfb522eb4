"""Decides what a step computes: which sequences decode, and which chunks of other work. No torch.

Admission is in arrival order: the first generation that does not fit holds back those behind it, so that none
starves. Chunks are taken in turn: a sequence whose chunk was computed moves behind the others.
"""

from bisect import insort
from collections import deque
from dataclasses import dataclass, replace

from kronos_model.engine.generation import Generation
from kronos_model.engine.sequence import Chunk, Phase, Sequence
from kronos_model.engine.slots import SlotLedger, num_prompt_slots


@dataclass(frozen=True)
class StepLimits:
    """How much a step computes at once: paths that decode together, and bars in chunks."""

    paths: int
    chunk_bars: int


class Scheduler:
    """Slots, the generations that wait for them, and the sequences that have them.

    ``max_chunk_bars`` bounds what one step computes in addition to the newest bars, and so how long running
    sequences wait for a step.
    """

    def __init__(self, num_slots: int, max_context: int, max_chunk_bars: int) -> None:
        if num_slots < 1 or max_chunk_bars < 1:
            raise ValueError("there must be at least one slot and one bar in a chunk")
        self.num_slots = num_slots
        self.max_context = max_context
        self.max_chunk_bars = max_chunk_bars
        self.limits = StepLimits(num_slots, max_chunk_bars)
        self._slots = SlotLedger(num_slots)
        self._prompts = SlotLedger(num_prompt_slots(num_slots), first=num_slots)
        self._waiting: deque[Generation] = deque()
        self._in_chunks: deque[Sequence] = deque()
        self._decoding: list[Sequence] = []

    @property
    def slots_used(self) -> int:
        return self._slots.num_used

    @property
    def paths_waiting(self) -> int:
        """Paths of series that have no slot yet. Any thread may read it."""
        return sum(generation.num_paths_left for generation in self._waiting.copy())

    @property
    def num_running(self) -> int:
        """Sequences that have slots."""
        return len(self._in_chunks) + len(self._decoding)

    def add(self, generation: Generation) -> None:
        """Queue a generation. If it needs more slots than there are, it runs in rounds."""
        self._waiting.append(generation)

    def batches(self) -> list[tuple[Sequence, ...]]:
        """The sequences that decode, in one batch, or in several if ``limits.paths`` asks for it."""
        batches: list[list[Sequence]] = []
        num_paths = 0
        for sequence in self._decoding:
            num_paths += sequence.num_paths
            if not batches or num_paths > self.limits.paths:
                batches.append([])
                num_paths = sequence.num_paths
            batches[-1].append(sequence)
        return [tuple(batch) for batch in batches]

    def shrink(self, failed: tuple[Chunk, ...] | tuple[Sequence, ...]) -> bool:
        """Compute at most half of what failed at once. Returns whether that is less than before."""
        before = self.limits
        num_paths = sum(one.num_paths for one in failed if isinstance(one, Sequence))
        num_bars = sum(one.num_bars for one in failed if isinstance(one, Chunk))
        self.limits = StepLimits(_halved(before.paths, num_paths), _halved(before.chunk_bars, num_bars))
        return self.limits != before

    def grow(self) -> None:
        """Twice as much, up to what there is."""
        paths, chunk_bars = self.limits.paths, self.limits.chunk_bars
        self.limits = StepLimits(min(2 * paths, self.num_slots), min(2 * chunk_bars, self.max_chunk_bars))

    def advance(self, sequence: Sequence) -> None:
        """Put a sequence where its phase belongs, after it changed: behind those that wait for their turn."""
        was_decoding = sequence in self._decoding
        if was_decoding and sequence.is_decoding:
            return
        (self._decoding if was_decoding else self._in_chunks).remove(sequence)
        if sequence.is_decoding:
            # By slot: neighbours in the cache are read in one go.
            insort(self._decoding, sequence, key=lambda one: one.slots[0])
        elif was_decoding and sequence.phase is Phase.BARS:  # nearly done, so it frees its slots soonest
            self._in_chunks.appendleft(sequence)
        else:
            self._in_chunks.append(sequence)

    def next_round(self, sequence: Sequence) -> None:
        """Let a sequence go on with its generation's next paths; frees the slots that they do not need."""
        sequence.next_round()
        self._slots.give_back(sequence.slots[sequence.num_paths :])
        sequence.slots = sequence.slots[: sequence.num_paths]
        self.advance(sequence)

    def release(self, sequence: Sequence) -> None:
        """Free the slots of a sequence that ended or failed."""
        (self._decoding if sequence in self._decoding else self._in_chunks).remove(sequence)
        self._slots.give_back(sequence.slots)
        if sequence.shares_prompt:
            self._prompts.give_back((sequence.prompt_slot,))

    def postpone_newest(self) -> Sequence:
        """Take the slots of the newest sequence; it starts over when fewer others run."""
        newest = max((*self._in_chunks, *self._decoding), key=lambda one: one.generation.timings.submitted)
        self.release(newest)
        newest.generation.start_over()
        self._waiting.appendleft(newest.generation)
        self.limits = replace(self.limits, paths=max(1, min(self.limits.paths, self._slots.num_used)))
        return newest

    def drop(self, generation: Generation) -> Sequence | None:
        """Forget a generation; returns its sequence if that was running."""
        if generation in self._waiting:
            self._waiting.remove(generation)
            return None
        running = (*self._in_chunks, *self._decoding)
        dropped = next((one for one in running if one.generation is generation), None)
        if dropped is not None:
            self.release(dropped)
        return dropped

    def admit(self) -> list[Sequence]:
        """Give free slots to the generations that waited longest; returns their new sequences."""
        admitted = []
        while self._waiting:
            first = self._waiting[0]
            num_paths = min(first.num_paths_left, self.num_slots, first.max_paths or self.num_slots)
            in_use = self._slots.num_used
            # The limit is for several generations: a larger one runs alone.
            if in_use + num_paths > (self.limits.paths if in_use else self.num_slots):
                break
            slots = self._slots.take(num_paths)
            prompt_slot = slots[0] if num_paths == 1 else self._prompts.take(1)[0]
            generation = self._waiting.popleft()
            admitted.append(
                Sequence(
                    generation, num_paths, self.max_context, slots, prompt_slot, generation.num_paths_done
                )
            )
        self._in_chunks.extend(admitted)
        return admitted

    def next_chunks(self) -> tuple[Chunk, ...]:
        """The chunks of the next step: in turn, as many as fit.

        Only the first of them may be a part of its phase's work.
        """
        chunks: list[Chunk] = []
        room = self.limits.chunk_bars
        for sequence in self._in_chunks:
            if chunks and sequence.num_bars_left > room:
                break
            chunks.append(sequence.next_chunk(room))
            room -= chunks[-1].num_bars
        return tuple(chunks)


def _halved(limit: int, amount: int) -> int:
    return min(limit, max(1, amount // 2)) if amount else limit
