"""From a model's name to an engine on its device, within its share of the memory."""

import gc
import time
from dataclasses import dataclass
from typing import Final

import torch

from kronos_model.checkpoint import CheckpointPair, default_max_context, load_pair
from kronos_model.device import describe_device, empty_cache, move_to_device
from kronos_model.engine.build import build_engine
from kronos_model.engine.engine import Engine
from kronos_model.errors import OutOfMemory
from worker.contract.results import ModelInfo
from worker.model_names import ModelName
from worker.settings import Settings

CLIP: Final = 5.0
GPU_MEMORY_SHARE: Final = 0.8
"""Of a GPU's free memory; the rest is for what a step computes, and for what others take meanwhile."""


@dataclass(frozen=True)
class LoadedModel:
    """A model that is loaded and placed. The engine is not in any thread's hands yet."""

    info: ModelInfo
    engine: Engine
    max_context: int
    num_parameters: int
    load_s: float


class ModelLoader:
    """Loads models onto one device, each within its share of one memory budget.

    The budget is ``KRONOS_MEMORY_MB``, else most of what is free on a GPU now. It is divided by as many
    models as this worker may come to hold at once, so that the slots of one never take what another was
    promised.

    Attributes:
        device: where models are placed.
        device_warning: why that is not the device that was wanted, else None.
    """

    def __init__(self, settings: Settings, device: torch.device) -> None:
        self._settings = settings
        self.device = device
        self.device_warning: str | None = None
        self.share_bytes = _share_bytes(settings, device)

    def load_own(self) -> LoadedModel:
        """The worker's own model. Where the device cannot hold it, the CPU becomes the device.

        Raises:
            CheckpointError and those below it, OutOfMemory.
        """
        settings = self._settings
        name = ModelName(
            settings.model, settings.tokenizer, settings.model_revision, settings.tokenizer_revision
        )
        return self._load(name, may_move=True)

    def load_further(self, name: ModelName) -> LoadedModel:
        """Another model, on the same device and nowhere else.

        Raises:
            CheckpointError and those below it, OutOfMemory.
        """
        return self._load(name, may_move=False)

    def max_context_of(self, model: str) -> int:
        """Bars that a model which is not loaded yet will see."""
        return self._settings.max_context or default_max_context(model)

    def reclaim(self) -> None:
        """Give the memory of models that nobody refers to any more back to the device."""
        gc.collect()  # modules and their hooks may refer to each other
        empty_cache(self.device)

    def _load(self, name: ModelName, *, may_move: bool) -> LoadedModel:
        started = time.perf_counter()
        settings = self._settings
        # Every thread that computes in parallel has a team of OpenMP's threads, and once there are more of
        # those than cores, they sleep between operations instead of waiting at the ready: each small
        # operation then takes half as long again, for good. So the engine's thread alone has a team.
        torch.set_num_threads(1)
        pair = load_pair(
            name.model,
            name.tokenizer,
            model_revision=name.model_revision,
            tokenizer_revision=name.tokenizer_revision,
        )
        self._place(pair, may_move=may_move)
        max_context = settings.max_context or pair.max_context
        engine = build_engine(
            pair.model,
            pair.tokenizer,
            max_context=max_context,
            clip=CLIP,
            max_slots=settings.max_slots,
            max_prefill_bars=settings.max_prefill_bars,
            memory_bytes=self.share_bytes,
            dtype=getattr(torch, settings.dtype),
        )
        return LoadedModel(
            info=_model_info(pair),
            engine=engine,
            max_context=max_context,
            num_parameters=sum(parameter.numel() for parameter in pair.model.parameters()),
            load_s=round(time.perf_counter() - started, 3),
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


def num_models(settings: Settings) -> int:
    """Models that a worker may come to hold at once."""
    further = settings.further_models.keys() - {settings.model}
    return min(settings.max_models, 1 + len(further))


def _share_bytes(settings: Settings, device: torch.device) -> int | None:
    """Memory of one model; None for no limit."""
    if settings.memory_mb is not None:
        return settings.memory_mb * 2**20 // num_models(settings)
    if device.type == "cpu":
        return None
    free_bytes = describe_device(device).memory_free_bytes
    return None if free_bytes is None else int(free_bytes * GPU_MEMORY_SHARE) // num_models(settings)


def _model_info(pair: CheckpointPair) -> ModelInfo:
    """The names and revisions that a result carries."""
    model, tokenizer = pair.model.checkpoint, pair.tokenizer.checkpoint
    if model is None or tokenizer is None:
        raise RuntimeError("a checkpoint pair knows where it was loaded from")
    return ModelInfo(
        id=model.id, revision=model.revision, tokenizer_id=tokenizer.id, tokenizer_revision=tokenizer.revision
    )
