"""A series' paths while they run: their phase, and what is computed next. No torch.

The newest known bar of a path is the input of a decode step; all bars before it must be in the cache. So
the *prompt*, which all paths share, is the lookback without its last bar, and a path's *own* bars begin with
that last bar. A step puts the newest bar into the cache and generates the next one.
"""

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from kronos_model.engine.generation import Generation, SeriesRequest

STREAM_BLOCK: Final = 16
"""On the CPU, bars computed early are bit for bit the final ones if their number is a multiple of this."""


class Phase(Enum):
    """What a sequence does now. All phases but ``DECODE`` are computed in chunks."""

    LOOKBACK = "tokenizing the lookback and caching the prompt"
    PROMPT = "caching the prompt again, or what is left of it after the window slid"
    WINDOW_PATHS = "caching each path's own bars again, after the window slid"
    DECODE = "generating one bar a step"
    EARLY_BARS = "turning the tokens so far into bars, for a request that streams"
    BARS = "turning the paths' tokens back into bars"


TO_BARS: Final = (Phase.EARLY_BARS, Phase.BARS)


@dataclass(eq=False)
class Sequence:
    """Paths ``[first_path, first_path + num_paths)`` of a generation, which run together in ``slots``.

    Path i has slot i. If the generation has several paths, the prompt is in a slot of its own; else it is in
    the path's slot, before its own bars. While the sequence is suspended, or turned back into bars, others
    may have these slots.
    """

    generation: Generation
    num_paths: int
    max_context: int
    slots: tuple[int, ...] = ()
    prompt_slot: int = -1
    first_path: int = 0
    phase: Phase = Phase.LOOKBACK
    num_units_done: int = 0
    num_generated: int = 0
    num_generated_before: int = 0  # when it got its slots
    next_change: int = 0  # the number of generated bars at which ``change_phase`` is due, while it decodes
    cached_from: int = 0  # the start of the window that is in the cache

    request: SeriesRequest = field(init=False)
    prompt_length: int = field(init=False)  # bars of lookback, without the last one, that fit the context
    shares_prompt: bool = field(init=False)  # the prompt is in a slot of its own

    def __post_init__(self) -> None:
        self.request = self.generation.request
        self.prompt_length = min(self.request.lookback, self.max_context) - 1
        self.shares_prompt = self.request.sampling.sample_count > 1
        self.generation.sequences.append(self)

    @property
    def window_start(self) -> int:
        """Bars that lie before the window of the next step."""
        return max(0, self.prompt_length + 1 + self.num_generated - self.max_context)

    @property
    def cached_prompt_length(self) -> int:
        """Bars of the prompt in the cached window."""
        return self.prompt_length - self.cached_from

    @property
    def own_start(self) -> int:
        """Where in its slot a path's own bars begin."""
        return 0 if self.shares_prompt else self.cached_prompt_length

    @property
    def num_bars_kept(self) -> int:
        """Bars of its slot that a suspended path needs again: none after the window slid."""
        return 0 if self.cached_from else min(self.own_start + self.num_generated, self.max_context)

    def _units(self) -> tuple[int, int]:
        """Units of work in this phase, bars of the lookback or of the prompt, else paths; bars in each."""
        match self.phase:
            case Phase.LOOKBACK:
                return self.request.lookback, 1
            case Phase.PROMPT:
                return self.cached_prompt_length, 1
            case Phase.DECODE:
                return 1, 1
            case Phase.WINDOW_PATHS | Phase.EARLY_BARS:
                return self.num_paths, self.num_generated
            case Phase.BARS:
                return self.num_paths, self.request.horizon

    def next_chunk(self, max_bars: int) -> "Chunk":
        """The next part of the phase's work: at most ``max_bars`` bars, but at least one unit."""
        num_units, unit_bars = self._units()
        first = self.num_units_done
        last = min(first + max(1, max_bars // unit_bars), num_units)
        return Chunk(self, self.phase, first, last, (last - first) * unit_bars)

    @property
    def num_bars_left(self) -> int:
        """Bars that are left to compute in this phase."""
        num_units, unit_bars = self._units()
        return (num_units - self.num_units_done) * unit_bars

    def complete(self, chunk: "Chunk") -> None:
        """Note that a chunk was computed; the phase may end with it."""
        self.num_units_done = chunk.last
        self._leave_finished_phases()

    @property
    def is_complete(self) -> bool:
        """Whether everything in this round is computed."""
        return self.phase is Phase.BARS and self.num_units_done == self.num_paths

    def change_phase(self) -> None:
        """Go on after the first bar that a step generated, the last one, or one that moves the window."""
        if self.num_generated == self.request.horizon:
            self._enter(Phase.BARS)
        elif self.num_generated == self._streamed_at(self.num_generated):
            self._enter(Phase.EARLY_BARS)
        elif self._has_slid:
            self._cache_anew()
        else:
            self.next_change = self._streamed_at(self.num_generated + 1)
            if self.request.context_policy == "exact":
                self.next_change = min(self.next_change, self.max_context - self.prompt_length)

    @property
    def _has_slid(self) -> bool:
        """Whether the cached window is no longer that of the next step."""
        return self.request.context_policy == "exact" and self.window_start != self.cached_from

    @property
    def paths(self) -> range:
        return range(self.first_path, self.first_path + self.num_paths)

    def enter_slots(self, slots: tuple[int, ...], prompt_slot: int, *, has_prompt: bool) -> None:
        """Start or go on in these slots. ``has_prompt``: the prompt is in its slot already."""
        self.slots, self.prompt_slot = slots, prompt_slot
        self.num_generated_before = self.num_generated
        self._enter(Phase.DECODE if self.generation.is_tokenized else Phase.LOOKBACK)
        if self.phase is Phase.DECODE and (self.cached_from or self._has_slid or not has_prompt):
            self._cache_anew()

    def start_over(self) -> None:
        """Lose what was generated; the paths begin again in the next slots."""
        self.generation.num_bars_done -= self.num_paths * self.num_generated
        self.num_generated = self.cached_from = 0
        self._enter(Phase.LOOKBACK)

    def split(self, num_paths: int) -> "Sequence":
        """Cut off the last ``num_paths`` paths, as a sequence of their own."""
        kept = self.num_paths - num_paths
        tail = replace(self, num_paths=num_paths, first_path=self.first_path + kept, slots=self.slots[kept:])
        self.num_paths, self.slots = kept, self.slots[:kept]
        self._leave_finished_phases()  # the paths that are left may all be cached
        return tail

    def _cache_anew(self) -> None:
        self.cached_from = self.window_start if self.request.context_policy == "exact" else 0
        self._enter(Phase.PROMPT)
        self._leave_finished_phases()  # if nothing is left of the prompt

    def _streamed_at(self, num_bars: int) -> int:
        """The next number of bars, at least this one, at which bars are computed early; else the horizon.

        If the request streams, these are 16, 32, 64 … up to three quarters of the horizon. Each time all bars
        are computed, which is at most 4/3 of the work of turning all tokens into bars once.
        """
        early, horizon = max(STREAM_BLOCK, 1 << (num_bars - 1).bit_length()), self.request.horizon
        return early if self.request.streams and 4 * early <= 3 * horizon else horizon

    def _leave_finished_phases(self) -> None:
        while self.phase not in (Phase.DECODE, Phase.BARS) and self.num_units_done >= self._units()[0]:
            if self.phase is Phase.LOOKBACK:
                self.generation.is_tokenized = True
            if self.phase is Phase.EARLY_BARS and self._has_slid:
                self._cache_anew()
                return
            # Until the window slides, the paths' own bars stay in the cache.
            has_paths_to_cache = self.phase is Phase.PROMPT and self.cached_from and self.num_generated
            self._enter(Phase.WINDOW_PATHS if has_paths_to_cache else Phase.DECODE)

    def _enter(self, phase: Phase) -> None:
        self.phase, self.num_units_done = phase, 0
        self.next_change = self.num_generated + 1


@dataclass(frozen=True)
class Chunk:
    """Units ``[first, last)`` of a sequence's phase, computed in one go."""

    sequence: Sequence
    phase: Phase
    first: int
    last: int
    num_bars: int

    @property
    def generation(self) -> Generation:
        return self.sequence.generation
