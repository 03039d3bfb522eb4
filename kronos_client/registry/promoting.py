"""Promotion of a version that a backtest finds no worse, as the command line and HTTP offer it."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kronos_client.registry.model_registry import ModelRegistry, promote
from kronos_client.registry.registered_model import RegisteredModel
from kronos_model.checkpoints.source import read_json
from kronos_model.errors import CheckpointError
from kronos_model.evaluation.windows import MIN_WINDOWS

Verdict = Mapping[str, Any]
"""A backtest's comparison of two models: ``verdict``, ``difference`` in %, and its interval."""


class NotPromoted(ValueError):
    """No backtest says that the version is no worse. ``verdict`` is what it says, if it compares them."""

    def __init__(self, reason: str, verdict: Verdict | None = None) -> None:
        super().__init__(reason)
        self.verdict = verdict


@dataclass(frozen=True)
class Promoted:
    """The version that its name means now, the one before, and the backtest's verdict if it was needed."""

    new: RegisteredModel
    before: RegisteredModel | None
    verdict: Verdict | None = None


def promote_checked(
    registry: ModelRegistry, reference: str, backtest: Path | None, *, forced: bool
) -> Promoted | None:
    """Let a name mean its version ``name@version``; None if there is no such version.

    Args:
        backtest: The folder of a backtest's report.
        forced: Promote it without a backtest, also if what the name means now is damaged.

    Raises:
        NotPromoted: No backtest says that it is no worse than what the name means now.
        CheckpointError, DiskFull: The models cannot be read or written.
    """
    new = registry.resolve(reference) if "@" in reference else None
    if new is None:
        return None
    present = meant(registry, new.name) if forced else registry.resolve(new.name)
    verdict = None
    if present is not None and present != new and not forced:
        verdict = _verdict(backtest, new, present)
    promote(new, forced=forced)
    return Promoted(new, present, verdict)


def meant(registry: ModelRegistry, name: str) -> RegisteredModel | None:
    """What a name means now; None for a damaged version, which promoting or a rollback is to replace."""
    with suppress(CheckpointError):
        return registry.resolve(name)
    return None


def _verdict(backtest: Path | None, new: RegisteredModel, present: RegisteredModel) -> Verdict:
    """Raises NotPromoted."""
    must = f"{new.reference} must be no worse than {present.reference}, but"
    if backtest is None:
        raise NotPromoted(f"{must} without a backtest, nothing says so")
    report = read_json(backtest / "report.json")
    if not isinstance(report, dict) or not report.keys() >= {"models", "model_info", "num_windows"}:
        raise NotPromoted(f"{must} there is no report.json of that backtest")
    names = {
        model: name
        for name, info in report["model_info"].items()
        for model in (new, present)
        if (info["id"], info["revision"]) == (model.name, str(model.version))
    }
    if missing := [model.reference for model in (new, present) if model not in names]:
        raise NotPromoted(f"{must} the backtest has no {' and no '.join(missing)}")
    by: Verdict = report["models"][names[new]]["against"][names[present]]
    if by["verdict"] == "worse":
        text = f"the backtest says that it is {-by['difference']:.1f} % worse than {present.reference}"
        raise NotPromoted(f"{must} {text}", by)
    number = report["num_windows"]
    if by["low"] is None or number < MIN_WINDOWS:
        few = f"too few windows to compare them: {number}. Ask for {MIN_WINDOWS} or more, over a longer time"
        raise NotPromoted(f"{must} the backtest has {few}", by)
    return by
