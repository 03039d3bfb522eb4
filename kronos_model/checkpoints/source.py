"""The place of a checkpoint: bundled with this package, in a local folder, or on the model hub.

From the hub, or from its cache on this machine, two files are fetched. ``huggingface_hub`` does the download,
its locks, resuming and the cache. This module adds three things: one quick request before any download,
because the library retries a failed download for up to six minutes; both files from one commit; and errors
with a cause and a remedy.
"""

import functools
import json
import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict

import httpx2
from huggingface_hub import constants, errors, get_hf_file_metadata, hf_hub_download, hf_hub_url
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # re-exported untyped

from kronos_model.checkpoints.names import BUNDLED_FOLDER, bundled_names, did_you_mean, full_name
from kronos_model.errors import CheckpointError, CheckpointMissing, CheckpointUnreachable

CONFIG_NAME = "config.json"
WEIGHTS_NAME = "model.safetensors"
METADATA_TIMEOUT_S = 5.0

_COMMIT_HASH = re.compile(r"[0-9a-f]{40}")
_WAYS_OUT = (
    "Connect this machine to the hub once, copy a filled cache to it (HF_HOME), "
    "name a local folder, or use the bundled checkpoint 'kronos-tiny'."
)

logger = logging.getLogger(__name__)
Origin = Literal["bundled", "folder", "hub"]
Part = Literal["model", "tokenizer"]


class HubAccess(TypedDict, total=False):
    """Options of ``huggingface_hub.hf_hub_download``."""

    cache_dir: str | os.PathLike[str] | None
    local_files_only: bool
    token: str | bool | None


def fetch_checkpoint(repo_id: str, revision: str | None, access: HubAccess) -> Path:
    """Folder in the hub's cache that holds ``config.json`` and ``model.safetensors`` of one commit.

    A full commit hash whose files are cached needs no network. A branch or tag is looked up on the hub
    first. If the hub does not answer or denies access, the cached commit is used. ``HF_ENDPOINT``,
    ``HF_HOME``, ``HF_TOKEN`` and ``HF_HUB_OFFLINE`` work as in ``huggingface_hub``. The folder's name is the
    commit hash.

    Raises:
        CheckpointMissing: the hub has no such repository, revision or file, or hides it.
        CheckpointUnreachable: not cached, and the hub does not answer or offline mode is on.
        CheckpointError: the download failed on this machine (disk full, cache not writable).
    """
    name = f"'{repo_id}'" if revision is None else f"'{repo_id}' at revision '{revision}'"
    offline = access.get("local_files_only") or constants.is_offline_mode()
    cached: HubAccess = {**access, "local_files_only": True}
    pinned = revision is not None and _COMMIT_HASH.fullmatch(revision) is not None
    if offline or pinned:
        try:
            return _snapshot(repo_id, revision, cached)
        except errors.LocalEntryNotFoundError as error:
            if offline:
                message = f"The checkpoint {name} is not cached, and offline mode forbids asking the hub."
                raise CheckpointUnreachable(f"{message} {_WAYS_OUT}") from error
    try:
        config_url = hf_hub_url(repo_id, CONFIG_NAME, revision=revision)
        get_hf_file_metadata(config_url, timeout=METADATA_TIMEOUT_S, token=access.get("token"))
    except (errors.RevisionNotFoundError, errors.RemoteEntryNotFoundError) as error:
        raise _explained(error, repo_id, name) from error
    except (httpx2.HTTPError, OSError) as error:
        try:
            folder = _snapshot(repo_id, revision, cached)
        except errors.LocalEntryNotFoundError:
            raise _explained(error, repo_id, name) from error
        logger.warning("%s Using the cached commit %s.", _explained(error, repo_id, name), folder.name)
        return folder
    try:
        return _snapshot(repo_id, revision, access)
    except (httpx2.HTTPError, OSError, RuntimeError) as error:  # RuntimeError: hf_xet's failed transfers
        raise _explained(error, repo_id, name) from error


def _snapshot(repo_id: str, revision: str | None, access: HubAccess) -> Path:
    download = functools.partial(hf_hub_download, repo_id, etag_timeout=METADATA_TIMEOUT_S, **access)
    folder = Path(download(CONFIG_NAME, revision=revision)).parent
    # The branch may move between the two downloads: take both files from the first one's commit.
    download(WEIGHTS_NAME, revision=folder.name)
    return folder


def _explained(error: Exception, repo_id: str, name: str) -> CheckpointError:
    """The package's own error for an error of ``huggingface_hub``; the most specific cases come first."""
    hub = constants.ENDPOINT
    match error:
        case errors.GatedRepoError():
            return CheckpointMissing(
                f"'{repo_id}' is gated: ask for access at {hub}/{repo_id}, then pass a token or set HF_TOKEN."
            )
        case errors.RepositoryNotFoundError():
            return CheckpointMissing(
                f"The hub at {hub} shows no model '{repo_id}'. Check the spelling; "
                "if it is private, pass a token or set HF_TOKEN."
            )
        case errors.RevisionNotFoundError():
            return CheckpointMissing(f"The hub at {hub} has a model '{repo_id}', but no checkpoint {name}.")
        case errors.DisabledRepoError():
            return CheckpointMissing(f"'{repo_id}' has been disabled on the hub at {hub}.")
        case errors.RemoteEntryNotFoundError():
            return CheckpointMissing(
                f"The checkpoint {name} lacks a file on the hub ({_short(error)}). Both {CONFIG_NAME} and "
                f"{WEIGHTS_NAME} are needed; pickled weights (pytorch_model.bin) are never loaded."
            )
        case errors.HfHubHTTPError() if error.response.status_code in (401, 403):
            return CheckpointMissing(
                f"The hub at {hub} refuses access to '{repo_id}' (status {error.response.status_code}). "
                "Check the token, or HF_TOKEN."
            )
        case httpx2.HTTPError() | errors.LocalEntryNotFoundError() | RuntimeError():
            return CheckpointUnreachable(
                f"The checkpoint {name} could not be fetched from {hub} ({_short(error)}). {_WAYS_OUT}"
            )
        case _:
            return CheckpointError(
                f"The checkpoint {name} could not be downloaded into the cache ({_short(error)})."
            )


def _short(error: Exception) -> str:
    """The first line of an error; the library's further lines are advice for other cases."""
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


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


def locate_checkpoint(
    source: str | os.PathLike[str], part: Part, revision: str | None, access: HubAccess
) -> CheckpointSource:
    """Find the files of a checkpoint. Download them if they are on the hub and not cached.

    ``source`` is a bundled name, a local folder, a hub id, or short for one of them (``SHORT_NAMES``). A path
    object is always a folder. Of a folder with a pair (``model/`` and ``tokenizer/``), ``part`` is taken.
    ``revision`` and ``access`` are for hub ids only.

    Raises CheckpointMissing if ``source`` is none of the three, and the errors of ``fetch_checkpoint``.
    """
    source = full_name(source) if isinstance(source, str) else source
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
            f"'{source}' is neither a bundled checkpoint ({known}) nor a folder nor a hub id (owner/name)"
            f"{did_you_mean(source)}."
        ) from error
    return None


def read_metadata(source: str | os.PathLike[str]) -> dict[str, Any]:
    """The content of a checkpoint's ``metadata.json``; empty if there is none.

    Only bundled and finetuned checkpoints have that file. Raises CheckpointError if it is damaged.
    """
    source = full_name(str(source))
    folder = BUNDLED_FOLDER / source if source in bundled_names() else Path(source)
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
