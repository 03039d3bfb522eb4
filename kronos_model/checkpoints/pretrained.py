"""Loading and saving modules as ``config.json`` plus ``model.safetensors``."""

import json
import os
import shutil
import typing
import uuid
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from huggingface_hub import PyTorchModelHubMixin
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from kronos_model.atomic_write import STAGING, sync
from kronos_model.checkpoints.source import (
    CONFIG_NAME,
    WEIGHTS_NAME,
    CheckpointSource,
    HubAccess,
    Part,
    locate_checkpoint,
    read_json,
)
from kronos_model.errors import CheckpointError, CheckpointMissing

PICKLED = {".bin", ".pt", ".pth"}
_MAX_NAMED = 3


class _Undrawn(TorchFunctionMode):
    """Leaves parameters uninitialised, because the checkpoint's tensors replace them.

    This saves time. If a config asks for more than its checkpoint holds, it also saves memory: memory that is
    never written takes only addresses. The meta device would do the same, but the first arithmetic on it
    imports PyTorch's compiler (2.13), which takes longer than importing PyTorch itself.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if func in (Tensor.normal_, Tensor.uniform_) or getattr(func, "__module__", None) == nn.init.__name__:
            return args[0] if args else given["tensor"]
        return func(*args, **given)


class PretrainedModule(nn.Module, PyTorchModelHubMixin):
    """Base of the modules that are published as checkpoints.

    A subclass sets ``checkpoint_part``. Its constructor takes exactly the keys of ``config.json``, each
    annotated with ``int``, ``float`` or ``bool``. The mixin's loading accepts missing tensors and pickled
    weights. Loading here is strict, and errors name the defect.

    Attributes:
        checkpoint_part: the class's half of a pair of checkpoints.
        checkpoint: the source of the instance; None if its constructor made it.
    """

    checkpoint_part: ClassVar[Part] = "model"
    checkpoint: CheckpointSource | None = None

    @property
    def config(self) -> dict[str, Any]:
        """The constructor's arguments, as ``config.json`` holds them."""
        recorded: Any = self._hub_mixin_config
        return {key: recorded[key] for key in _config_types(type(self))}

    @classmethod
    def from_pretrained(  # type: ignore[override]  # the mixin's further arguments have no meaning here
        cls,
        source: str | os.PathLike[str],
        *,
        revision: str | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        local_files_only: bool = False,
        token: str | bool | None = None,
        map_location: str | torch.device = "cpu",
    ) -> Self:
        """Load a checkpoint. The module comes back in eval mode, its parameters trainable as constructed.

        Args:
            source: a bundled name (``"kronos-tiny"``), a local folder, or a hub id
                (``"NeoQuasar/Kronos-small"``).
            revision: branch, tag or commit hash on the hub. A full commit hash with cached files needs no
                network.
            cache_dir, local_files_only, token: as in ``huggingface_hub.hf_hub_download``.
            map_location: device the module is placed on.

        Floating-point weights of another width are converted to the module's own. Pickled weights are never
        read.

        Raises:
            CheckpointMissing: a folder, repository, revision, file or tensor is missing.
            CheckpointUnreachable: not cached, and the hub does not answer.
            CheckpointError: the files are damaged, or do not belong to this class.
        """
        access = HubAccess(cache_dir=cache_dir, local_files_only=local_files_only, token=token)
        checkpoint = locate_checkpoint(source, cls.checkpoint_part, revision, access)
        config = _read_config(checkpoint.folder, cls)
        tensors = _read_tensors(checkpoint.folder)
        _check_depth(config, tensors, str(checkpoint.folder / CONFIG_NAME))
        try:
            with _Undrawn():
                module = cls(**config)
            _check_tensors(tensors, module.state_dict(), f"{checkpoint.folder / WEIGHTS_NAME}")
        except (ValueError, TypeError, RuntimeError, AssertionError, ArithmeticError, MemoryError) as error:
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise CheckpointError(
                f"{checkpoint.folder / CONFIG_NAME} does not describe a {cls.__name__}: {reason}"
            ) from error
        module.load_state_dict(tensors)
        module.checkpoint = checkpoint
        return module.to(map_location).eval()

    def save_pretrained(  # type: ignore[override]  # narrower: a config has no dataclass form here
        self,
        save_directory: str | os.PathLike[str],
        *,
        config: Mapping[str, Any] | None = None,
        repo_id: str | None = None,
        push_to_hub: bool = False,
        model_card_kwargs: Mapping[str, Any] | None = None,  # the mixin's; no card is written
        **push_to_hub_kwargs: Any,
    ) -> str | None:
        """Write ``config.json`` and ``model.safetensors`` into a folder, which is made if missing.

        A new folder appears whole or not at all. In an existing one each file is replaced whole, the weights
        first. A crash between the two leaves new weights with the old config. They differ in shape only if
        the folder held another model, and loading then fails. No model card is written.

        Args:
            config: replaces the module's own config; it needs the same keys.
            push_to_hub, repo_id, push_to_hub_kwargs: as in ``huggingface_hub.PyTorchModelHubMixin``.

        Returns: the commit's URL if pushed, else None.
        """
        folder = Path(os.path.abspath(save_directory))  # noqa: PTH100  # resolve() would follow a linked folder
        content = dict(self.config if config is None else config)
        _check_config(content, type(self), "The config to be saved")
        # Copies, because tensors that share memory cannot be saved.
        tensors = {
            name: tensor.detach().to("cpu", copy=True).contiguous()
            for name, tensor in self.state_dict().items()
        }
        folder.parent.mkdir(parents=True, exist_ok=True)
        staging = folder.parent / STAGING.format(name=folder.name, unique=uuid.uuid4().hex)
        staging.mkdir()
        try:
            text = json.dumps(content, indent=2, sort_keys=True)
            (staging / CONFIG_NAME).write_text(text, encoding="utf-8")
            save_file(tensors, staging / WEIGHTS_NAME)
            # safetensors writes for the owner alone, whatever the umask.
            shutil.copymode(staging / CONFIG_NAME, staging / WEIGHTS_NAME)
            for name in (WEIGHTS_NAME, CONFIG_NAME):
                sync(staging / name)
            if folder.exists():
                for name in (WEIGHTS_NAME, CONFIG_NAME):
                    (staging / name).replace(folder / name)
            else:
                staging.rename(folder)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        if not push_to_hub:
            return None
        return self.push_to_hub(repo_id=repo_id or folder.name, **push_to_hub_kwargs)


def _config_types(cls: type[nn.Module]) -> dict[str, type]:
    """The type of each key of ``config.json``, from the constructor's annotations."""
    hints = typing.get_type_hints(cls.__init__)
    return {name: hint for name, hint in hints.items() if name != "return"}


def _read_config(folder: Path, cls: type[nn.Module]) -> dict[str, Any]:
    path = folder / CONFIG_NAME
    if not path.exists():
        raise CheckpointMissing(f"The checkpoint folder '{folder}' has no {CONFIG_NAME}.")
    config = read_json(path)
    if not isinstance(config, dict):
        raise CheckpointError(f"{path} holds a {type(config).__name__}, not an object of settings.")
    _check_config(config, cls, str(path))
    return config


def _check_config(config: Mapping[str, Any], cls: type[nn.Module], where: str) -> None:
    """Refuse settings that are missing, unknown or of another type than the constructor's."""
    types = _config_types(cls)
    wrong = [
        f"{key}={config[key]!r} (expected {expected.__name__})"
        for key, expected in types.items()
        if key in config and not _is_a(config[key], expected)
    ]
    _refuse(f"{where} does not fit {cls.__name__}", "setting", config, types, wrong)


def _is_a(value: object, expected: type) -> bool:
    # In Python true is an int, and JSON may hold a whole float without its point.
    if isinstance(value, bool):
        return expected is bool
    return isinstance(value, (int, float) if expected is float else expected)


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    path = folder / WEIGHTS_NAME
    try:
        return load_file(path)
    except FileNotFoundError as error:
        message = f"The checkpoint folder '{folder}' has no {WEIGHTS_NAME}."
        if pickled := sorted(file.name for file in folder.glob("*") if file.suffix in PICKLED):
            message += f" {pickled[0]} is a pickle, which can run any code when read: convert it first."
        raise CheckpointMissing(message) from error
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is damaged or not a safetensors file: {error}") from error


def _check_depth(config: Mapping[str, Any], tensors: Mapping[str, Tensor], where: str) -> None:
    """Refuse more layers than there are tensors, before a module of that size is made."""
    layers = {key: count for key, count in config.items() if key.endswith("layers") and count > len(tensors)}
    if layers:
        raise CheckpointError(f"{where} does not fit its weights: {layers}, but only {len(tensors)} tensors")


def _check_tensors(stored: Mapping[str, Tensor], expected: Mapping[str, Tensor], where: str) -> None:
    """Refuse tensors that are missing, unknown, of another shape or kind, or not finite."""
    shared = [(name, stored[name], expected[name]) for name in expected if name in stored]
    wrong = [
        f"{name} ({_form(ours)}, expected {_form(theirs)})"
        for name, ours, theirs in shared
        if ours.shape != theirs.shape
        or (ours.dtype != theirs.dtype and not (ours.is_floating_point() and theirs.is_floating_point()))
    ]
    wrong += [f"{name} (not finite)" for name, ours, _ in shared if not torch.isfinite(ours).all()]
    _refuse(f"{where} does not fit its config.json", "tensor", stored, expected, wrong)


def _form(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def _refuse(
    complaint: str, noun: str, given: Collection[str], expected: Collection[str], wrong: list[str]
) -> None:
    """Raise if names are missing, unknown or wrong, with the number and the first few of each kind."""
    missing = [name for name in expected if name not in given]
    unknown = [name for name in given if name not in expected]
    defects = {"missing": missing, "unknown": unknown, "wrong": wrong}
    found = {kind: names for kind, names in defects.items() if names}
    if not found:
        return
    parts = []
    for kind, names in found.items():
        shown = ", ".join(names[:_MAX_NAMED]) + (", …" if len(names) > _MAX_NAMED else "")
        parts.append(f"{len(names)} {noun}{'s' if len(names) > 1 else ''} {kind} ({shown})")
    error = CheckpointMissing if set(found) == {"missing"} else CheckpointError
    raise error(f"{complaint}: {'; '.join(parts)}.", details=found)
