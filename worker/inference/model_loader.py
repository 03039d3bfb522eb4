"""From a model's name to an engine on its device, within its share of the memory."""

import gc
import time
from dataclasses import dataclass
from typing import Final

import torch

from kronos_client.contract.model_info import ModelInfo
from kronos_client.model_spec import ModelSpec
from kronos_client.registry.model_registry import ModelRegistry
from kronos_client.registry.registered_model import RegisteredModel
from kronos_model.checkpoints.source import read_metadata
from kronos_model.devices.resolution import describe_device, empty_cache, move_to_device
from kronos_model.engine.build import build_engine, default_slots, num_slots_on
from kronos_model.errors import CheckpointError, OutOfMemory
from kronos_model.model_pair import DEFAULT_MODEL, CheckpointPair, default_max_context, load_pair
from worker.inference.job_run import HostedEngine
from worker.settings import WorkerSettings

CLIP: Final = 5.0
GPU_MEMORY_SHARE: Final = 0.8
"""Of a GPU's free memory; the rest is for what a step computes, and for what others take meanwhile."""

Loadable = ModelSpec | RegisteredModel
"""What an operator named, or what finetuning registered."""


@dataclass(frozen=True)
class LoadedModel:
    """A model that is loaded and placed, and its engine, for the engines' thread.

    Attributes:
        max_context: Bars that it sees at most.
        lookback: Bars that it was trained on, if its metadata say so.
    """

    info: ModelInfo
    hosted: HostedEngine
    max_context: int
    num_parameters: int
    load_s: float
    registered: RegisteredModel | None = None
    lookback: int | None = None

    @property
    def name(self) -> str:
        """What it is called among the models of this process."""
        return self.hosted.model_id


class ModelLoader:
    """Loads models onto one device, each within its share of one memory budget.

    The budget is ``KRONOS_MEMORY_MB``, else most of what is free on a GPU now. It is divided by as many
    models as this worker may come to hold at once, so that the slots of one never take what another was
    promised.

    Attributes:
        device: where models are placed.
        device_warning: why that is not the device that was wanted, else None.
        registry: the registered models, None where no folder of them is set.
    """

    def __init__(self, settings: WorkerSettings, device: torch.device) -> None:
        self._settings = settings
        self.device = device
        self.device_warning: str | None = None
        self.registry = None if settings.model_folder is None else ModelRegistry(settings.model_folder)
        self.share_bytes = _share_bytes(settings, device)

    def load_own(self) -> LoadedModel:
        """The worker's own model. If the device cannot hold it, the CPU becomes the device.

        Raises:
            CheckpointError and those below it, OutOfMemory.
        """
        return self._load(self._own(), may_move=True)

    def load_further(self, wanted: Loadable) -> LoadedModel:
        """Another model, on the same device and nowhere else.

        Raises:
            CheckpointError and those below it, OutOfMemory.
        """
        return self._load(wanted, may_move=False)

    def own_slots(self) -> int:
        """Sample paths that the worker's own model would compute at once on the device, which stays as it is.

        Raises:
            CheckpointError and those below it, OutOfMemory.
        """
        if self.share_bytes is None:
            return self._settings.max_slots or default_slots(self.device)
        wanted = self._own()
        pair = _load_pair(wanted)
        return num_slots_on(
            self.device,
            pair.model,
            pair.tokenizer,
            max_context=self.max_context_of(wanted),
            max_slots=self._settings.max_slots,
            memory_bytes=self.share_bytes,
            dtype=getattr(torch, self._settings.dtype),
        )

    def max_context_of(self, wanted: Loadable) -> int:
        """Bars that a model which is not loaded yet will see; a registered one no more than in training."""
        setting = self._settings.max_context
        if isinstance(wanted, RegisteredModel):
            return min(setting or wanted.metadata.max_context, wanted.metadata.max_context)
        return setting or default_max_context(wanted.model or DEFAULT_MODEL)

    def reclaim(self) -> None:
        """Return the memory of models that are no longer referred to."""
        gc.collect()  # modules and their hooks may refer to each other
        empty_cache(self.device)

    def _own(self) -> Loadable:
        """What the settings name, a registered model before a folder or a hub id of that name."""
        settings = self._settings
        name = ModelSpec(
            settings.model, settings.tokenizer, settings.model_revision, settings.tokenizer_revision
        )
        registered = None
        if self.registry is not None and settings.model is not None:
            registered = self.registry.resolve(settings.model)
        if registered is None:
            return name
        if name != ModelSpec(settings.model):
            raise CheckpointError(
                f"'{settings.model}' is a registered model, which has a tokenizer and versions of its own: "
                "unset KRONOS_TOKENIZER and the two revisions; a version is named as NAME@VERSION."
            )
        return registered

    def _load(self, wanted: Loadable, *, may_move: bool) -> LoadedModel:
        started = time.perf_counter()
        settings = self._settings
        # Every thread that computes in parallel has a team of OpenMP's threads, and once there are more of
        # those than cores, they sleep between operations instead of waiting at the ready: each small
        # operation then takes half as long again, for good. So the engine's thread alone has a team.
        torch.set_num_threads(1)
        pair = _load_pair(wanted)
        self._place(pair, may_move=may_move)
        max_context = self.max_context_of(wanted)
        engine = build_engine(
            pair.model,
            pair.tokenizer,
            max_context=max_context,
            clip=_clip(wanted),
            max_slots=settings.max_slots,
            max_prefill_bars=settings.max_prefill_bars,
            memory_bytes=self.share_bytes,
            dtype=getattr(torch, settings.dtype),
        )
        info = _model_info(pair, wanted)
        registered = wanted if isinstance(wanted, RegisteredModel) else None
        return LoadedModel(
            info=info,
            hosted=HostedEngine(info.id if registered is None else registered.reference, engine),
            max_context=max_context,
            num_parameters=sum(parameter.numel() for parameter in pair.model.parameters()),
            load_s=round(time.perf_counter() - started, 3),
            registered=registered,
            lookback=_lookback(wanted),
        )

    def _place(self, pair: CheckpointPair, *, may_move: bool) -> None:
        """Both on the device; or, where either does not fit, both on the CPU or an error."""
        for module in (pair.model, pair.tokenizer):
            _, placed, warning = move_to_device(module, self.device)
            if warning is None:
                continue
            if not may_move:
                raise OutOfMemory(f"{self.device} cannot hold the model: {warning}")
            self.device, self.device_warning = placed, warning
            self.share_bytes = _share_bytes(self._settings, placed)
            pair.model.to(placed)


def num_models(settings: WorkerSettings) -> int:
    """Models that a worker may come to hold at once."""
    if settings.model_folder is not None:  # any number may be registered yet
        return settings.max_models
    further = settings.further_models.keys() - {settings.model}
    return min(settings.max_models, 1 + len(further))


def _share_bytes(settings: WorkerSettings, device: torch.device) -> int | None:
    """Memory of one model; None for no limit."""
    if settings.memory_mb is not None:
        return settings.memory_mb * 2**20 // num_models(settings)
    if device.type == "cpu":
        return None
    free_bytes = describe_device(device).memory_free_bytes
    return None if free_bytes is None else int(free_bytes * GPU_MEMORY_SHARE) // num_models(settings)


def _load_pair(wanted: Loadable) -> CheckpointPair:
    """Onto the CPU; of a registered model only the files that were registered."""
    if isinstance(wanted, RegisteredModel):
        wanted.verify()
        return load_pair(wanted.folder)
    return load_pair(
        wanted.model,
        wanted.tokenizer,
        model_revision=wanted.model_revision,
        tokenizer_revision=wanted.tokenizer_revision,
    )


def _clip(wanted: Loadable) -> float:
    """Scaled values are clipped as they were in training."""
    clip = wanted.metadata.clip if isinstance(wanted, RegisteredModel) else None
    return clip or CLIP


def _lookback(wanted: Loadable) -> int | None:
    """The bars of lookback that it was trained on, if that is known."""
    if isinstance(wanted, RegisteredModel):
        return wanted.metadata.lookback
    lookback = read_metadata(wanted.model or DEFAULT_MODEL).get("lookback")
    return lookback if isinstance(lookback, int) else None


def _model_info(pair: CheckpointPair, wanted: Loadable) -> ModelInfo:
    """The names and revisions that a result carries."""
    if isinstance(wanted, RegisteredModel):
        name, version = wanted.name, str(wanted.version)
        return ModelInfo(id=name, revision=version, tokenizer_id=name, tokenizer_revision=version)
    model, tokenizer = pair.model.checkpoint, pair.tokenizer.checkpoint
    if model is None or tokenizer is None:
        raise RuntimeError("a checkpoint pair knows where it was loaded from")
    return ModelInfo(
        id=model.id, revision=model.revision, tokenizer_id=tokenizer.id, tokenizer_revision=tokenizer.revision
    )
