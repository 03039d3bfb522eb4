"""Which version a name alone means: the record of promotions, and what a backtest must say before one."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from pydantic import AwareDatetime, BaseModel, ConfigDict, PositiveInt, TypeAdapter

from kronos_client.registry.model_folder import locked, reading
from kronos_client.registry.registered_model import RegisteredModel
from kronos_model.atomic_write import atomic_write, disk_errors

FILE: Final = "promotions.json"


class Promotion(BaseModel):
    """One version that was promoted."""

    model_config = ConfigDict(frozen=True)

    version: PositiveInt
    promoted_at: AwareDatetime
    forced: bool


_PROMOTIONS: Final = TypeAdapter(list[Promotion])


def read_promotions(folder: Path) -> Sequence[Promotion]:
    """The promotions of the name with this folder, first to last; raises CheckpointError if it is damaged."""
    what = f"{FILE} of the registered model {folder.name}"
    with reading(what, " Delete it."), suppress(FileNotFoundError, NotADirectoryError):
        return _PROMOTIONS.validate_json((folder / FILE).read_bytes())
    return []


def promote(model: RegisteredModel, *, forced: bool) -> None:
    """Make a version what its name means. Raises CheckpointError, DiskFull."""
    folder = model.folder.parent
    with disk_errors(folder / FILE), locked(folder.parent):
        before = read_promotions(folder)
        if before and before[-1].version == model.version:
            return  # else the next rollback would change nothing
        now = datetime.now(UTC).replace(microsecond=0)
        _write(folder, [*before, Promotion(version=model.version, promoted_at=now, forced=forced)])


def roll_back(folder: Path) -> bool:
    """Forget the last promotion of the name with this folder; returns whether there was one.

    Raises CheckpointError, DiskFull.
    """
    if not folder.is_dir():  # then the model folder, which has the lock, may not exist either
        return False
    with disk_errors(folder / FILE), locked(folder.parent):
        promotions = read_promotions(folder)
        if promotions:
            _write(folder, promotions[:-1])
    return bool(promotions)


def why_not_promoted(report: Mapping[str, Any], new: RegisteredModel, present: RegisteredModel) -> str | None:
    """The reason if a backtest's report does not say that a version is no worse than the present one."""
    names = {
        model: name
        for name, info in report["model_info"].items()
        for model in (new, present)
        if (info["id"], info["revision"]) == (model.name, str(model.version))
    }
    if missing := [model.reference for model in (new, present) if model not in names]:
        return f"the backtest has no {' and no '.join(missing)}"
    by = report["models"][names[new]]["against"][names[present]]
    if by["verdict"] == "worse":
        return f"the backtest says that it is {-by['difference']:.1f} % worse than {present.reference}"
    if by["low"] is None:
        return "the backtest has too few windows to compare them"
    return None


def _write(folder: Path, promotions: Sequence[Promotion]) -> None:
    with atomic_write(folder / FILE) as staging:
        staging.write_bytes(_PROMOTIONS.dump_json(list(promotions), indent=2))
