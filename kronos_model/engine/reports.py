"""What an engine reports of a step and of its load. No torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class StepReport:
    """What one step computed, over all paths, and the seconds of each phase that the device has finished.

    A GPU may finish a phase only during a later step.
    """

    num_prefill_bars: int = 0
    num_bars: int = 0
    prefill_s: tuple[float, ...] = ()
    decode_s: tuple[float, ...] = ()


@dataclass(frozen=True)
class EngineLoad:
    """Sample paths in slots and waiting for them, and how many slots there are without the spare ones."""

    running: int
    waiting: int
    slots: int
