"""The place of a checkpoint: bundled with this package, in a local folder, or on the model hub."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # re-exported untyped

from kronos_model.checkpoints.hub import CONFIG_NAME, HubAccess, fetch_checkpoint
from kronos_model.errors import CheckpointError, CheckpointMissing

BUNDLED_FOLDER = Path(__file__).parents[1] / "bundled"

Origin = Literal["bundled", "folder", "hub"]
Part = Literal["model", "tokenizer"]


@dataclass(frozen=True, slots=True)
class CheckpointSource:
    """The place that a module is loaded from.

    Attributes:
        id: bundled name, hub id, or the folder's path as given.
        revision: full commit hash of a checkpoint from the hub, else None.
        folder: folder that holds ``config.json`` and ``model.safetensors``.
    """

    id: str
    revision: str | None
    origin: Origin
    folder: Path


def bundled_names() -> tuple[str, ...]:
    """Names of the checkpoints that come with this package."""
    return tuple(sorted(config.parents[1].name for config in BUNDLED_FOLDER.glob(f"*/model/{CONFIG_NAME}")))


def locate_checkpoint(
    source: str | os.PathLike[str], part: Part, revision: str | None, access: HubAccess
) -> CheckpointSource:
    """Find the files of a checkpoint. Download them if they are on the hub and not cached.

    ``source`` is a bundled name, a local folder, or a hub id, tried in this order. A path object is always a
    folder. If a folder holds a pair (``model/`` and ``tokenizer/``), its ``part`` is taken. ``revision`` and
    ``access`` are for hub ids only.

    Raises CheckpointMissing if ``source`` is none of the three, and the errors of ``fetch_checkpoint``.
    """
    if origin := local_origin(source):
        if revision is not None:
            raise CheckpointError(
                f"'{source}' is on this machine and has no revision '{revision}': only checkpoints on "
                "the hub have revisions. Leave the revision out."
            )
        folder = BUNDLED_FOLDER / source if origin == "bundled" else Path(source)
        if not (folder / CONFIG_NAME).exists() and (folder / part).is_dir():
            folder = folder / part
        return CheckpointSource(id=str(source), revision=None, origin=origin, folder=folder)
    folder = fetch_checkpoint(str(source), revision, access)
    return CheckpointSource(id=str(source), revision=folder.name, origin="hub", folder=folder)


def local_origin(source: str | os.PathLike[str]) -> Origin | None:
    """The origin of a checkpoint on this machine; None for a hub id. Other names raise CheckpointMissing."""
    if isinstance(source, str) and source in bundled_names():
        return "bundled"
    # Unlike Path.is_dir, this one takes any string: empty, too long, with a zero byte.
    if os.path.isdir(source):  # noqa: PTH112
        return "folder"
    known = ", ".join(bundled_names())
    if not isinstance(source, str):
        raise CheckpointMissing(f"There is no checkpoint folder '{os.fspath(source)}'.")
    try:
        validate_repo_id(source)
    except HFValidationError as error:
        raise CheckpointMissing(
            f"'{source}' is neither a bundled checkpoint ({known}) nor a folder nor a hub id (owner/name)."
        ) from error
    return None


def read_metadata(source: str | os.PathLike[str]) -> dict[str, Any]:
    """The content of a checkpoint's ``metadata.json``; empty if there is none.

    Only bundled and finetuned checkpoints have that file. Raises CheckpointError if it is damaged.
    """
    folder = BUNDLED_FOLDER / source if str(source) in bundled_names() else Path(source)
    metadata = read_json(folder / "metadata.json")
    return metadata if isinstance(metadata, dict) else {}


def read_json(path: Path) -> Any:
    """The content of a JSON file; None if it is missing. Raises CheckpointError if it is damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, OSError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {error}") from error


def is_trained(source: str | os.PathLike[str]) -> bool | None:
    """Whether a checkpoint is trained, so that its forecasts mean something; None if it does not say."""
    trained = read_metadata(source).get("trained")
    return trained if isinstance(trained, bool) else None
