"""Loads a model onto its device, and makes its engine, within a share of the memory."""

import gc
import logging
import time
from dataclasses import asdict, dataclass
from typing import Any, Final

import torch

from kronos_client.contract.model_info import EngineKind, ModelInfo
from kronos_client.registry.model_registry import ModelRegistry
from kronos_client.registry.registered_model import RegisteredModel
from kronos_client.settings import ModelSpec
from kronos_model.checkpoints.names import caution_about, full_name, short_name_taken
from kronos_model.checkpoints.source import read_metadata
from kronos_model.devices.probe import TorchProbe
from kronos_model.devices.resolution import describe_device, empty_cache, move_to_device
from kronos_model.engine.build import build_engine
from kronos_model.engine.memory import default_slots, num_slots_on
from kronos_model.errors import CheckpointError, KronosError, OutOfMemory
from kronos_model.model_pair import DEFAULT_MODEL, CheckpointPair, default_max_context, load_pair
from worker.inference.engine_thread import ModelEngine
from worker.settings import WorkerSettings

log = logging.getLogger(__name__)

CLIP: Final = 5.0
MIN_JOBS: Final = 64
"""Unless ``KRONOS_MAX_JOBS`` is set."""
GPU_MEMORY_SHARE: Final = 0.8
"""Of a GPU's free memory. The rest is for other processes, the driver, and gaps between tensors."""

Loadable = ModelSpec | RegisteredModel
"""A model from the settings, or a registered one."""

UsedEngines = dict[str, tuple[EngineKind, str | None]]
"""By the name of each model that was loaded: its engine, and the warning if that is not the native one."""


@dataclass(frozen=True)
class LoadedModel:
    """A model on its device, and its engine for the engine thread."""

    info: ModelInfo
    engine: ModelEngine
    max_context: int  # the most bars that it uses
    num_parameters: int
    load_s: float
    registered: RegisteredModel | None = None
    lookback: int | None = None  # bars, the most in its training
    min_lookback: int | None = None  # the fewest; None: always ``lookback``
    engine_kind: EngineKind = "torch"
    engine_warning: str | None = None
    caution: str | None = None  # if it is only for trying the service

    @property
    def name(self) -> str:
        return self.engine.model_id


class ModelLoader:
    """Loads models onto one device, each within its share of one memory budget.

    The budget is ``KRONOS_MEMORY_MB``, or most of a GPU's free memory. It is divided by the number of models
    that this worker may hold at once, so that the slots of one model never take another's share. All methods
    raise CheckpointError or an error below it, or OutOfMemory. A model that is loaded again has the engine
    that ``engines`` notes; ``load`` raises KronosError if it cannot have that one.
    """

    def __init__(
        self, settings: WorkerSettings, device: torch.device, engines: UsedEngines | None = None
    ) -> None:
        self._settings = settings
        self.device = device
        self.device_warning: str | None = None
        self.engines: UsedEngines = {} if engines is None else engines
        self.registry = None if settings.model_folder is None else ModelRegistry(settings.model_folder)
        self.share_bytes = _share_bytes(settings, device)

    def load(self, wanted: Loadable | None = None) -> LoadedModel:
        """Load a model; None is the worker's own. If that one does not fit the device, the CPU becomes it."""
        started = time.perf_counter()
        is_own = wanted is None
        wanted = self._own() if wanted is None else wanted
        # Each thread that computes in parallel gets its own team of OpenMP threads. If there are more of
        # these than cores, they sleep between operations, and each small operation takes 1.5 times as long
        # from then on. So only the engine thread gets a team.
        torch.set_num_threads(1)
        pair = _load_pair(wanted)
        self._place(pair, may_move=is_own)
        registered = wanted if isinstance(wanted, RegisteredModel) else None
        info = _model_info(pair, wanted)
        name = info.id if registered is None else registered.reference
        kind, warning = self.engines.get(name, (self._settings.engine, None))
        engine = build_engine(
            pair.model,
            pair.tokenizer,
            clip=(registered and registered.metadata.clip) or CLIP,
            max_prefill_bars=self._settings.max_prefill_bars,
            kind=kind,
            **self._size(wanted),
        )
        if kind == "native" and engine.kind != "native":
            text = f"{name} was computed by the native engine, which cannot be used any more"
            raise KronosError(f"{text}: {engine.kind_reason}. Start the worker again.")
        if name not in self.engines:
            if engine.kind_reason is not None:
                warning = f"Native engine not used: {engine.kind_reason}. Falling back to PyTorch."
            self.engines[name] = engine.kind, warning
        level = logging.INFO if warning is None else logging.WARNING
        log.log(level, "model %s: engine %s%s", name, engine.kind, "" if warning is None else f". {warning}")
        metadata = _metadata(wanted)
        return LoadedModel(
            info=info,
            engine=ModelEngine(name, engine),
            max_context=self.max_context_of(wanted),
            num_parameters=sum(parameter.numel() for parameter in pair.model.parameters()),
            load_s=round(time.perf_counter() - started, 3),
            registered=registered,
            engine_kind=engine.kind,
            engine_warning=warning,
            caution=caution_about(name, metadata),
            **_lookbacks(metadata),
        )

    def own_slots(self) -> int:
        """Sample paths that the worker's own model would compute at once. Loads nothing on the device."""
        if self.share_bytes is None:
            return self._settings.max_slots or default_slots(self.device)
        wanted = self._own()
        pair = _load_pair(wanted)
        return num_slots_on(self.device, pair.model, pair.tokenizer, **self._size(wanted))

    def max_context_of(self, wanted: Loadable) -> int:
        """The most bars that a model will use; for a registered one, no more than in training."""
        setting = self._settings.max_context
        if isinstance(wanted, RegisteredModel):
            return min(setting or wanted.metadata.max_context, wanted.metadata.max_context)
        return setting or default_max_context(wanted.model or DEFAULT_MODEL)

    def is_device_lost(self) -> bool:
        """Whether the device no longer computes anything."""
        return TorchProbe().is_lost(self.device)

    def reclaim(self) -> None:
        """Free the memory of models that are no longer used."""
        gc.collect()  # modules and their hooks may refer to each other
        empty_cache(self.device)

    def _own(self) -> Loadable:
        """The model in the settings. A registered model comes before a folder or hub id of that name."""
        given = self._settings
        spec = ModelSpec(given.model, given.tokenizer, given.model_revision, given.tokenizer_revision)
        if self.registry is None or given.model is None:
            return spec
        registered = self.registry.resolve(given.model)
        if registered is None:
            return spec
        for text in short_name_taken(given.model, registered.reference):
            log.warning("%s", text)
        if spec != ModelSpec(given.model):
            raise CheckpointError(
                f"'{given.model}' is a registered model, which has its own tokenizer and versions: unset "
                "KRONOS_TOKENIZER and the two revisions; to choose a version, write NAME@VERSION."
            )
        return registered

    def _size(self, wanted: Loadable) -> dict[str, Any]:
        """What decides how many sample paths an engine computes at once."""
        return {
            "max_context": self.max_context_of(wanted),
            "max_slots": self._settings.max_slots,
            "memory_bytes": self.share_bytes,
            "dtype": getattr(torch, self._settings.dtype),
        }

    def _place(self, pair: CheckpointPair, *, may_move: bool) -> None:
        """Move both to the device. If one does not fit, move both to the CPU, or raise OutOfMemory."""
        for module in (pair.model, pair.tokenizer):
            _, placed, warning = move_to_device(module, self.device)
            if warning is None:
                continue
            if not may_move:
                raise OutOfMemory(f"{self.device} cannot hold the model: {warning}")
            self.device, self.device_warning = placed, warning
            self.share_bytes = _share_bytes(self._settings, placed)
            pair.model.to(placed)


def max_jobs_on(device: torch.device, settings: WorkerSettings) -> int:
    """Jobs that a process holds: jobs of a single path fill one model's slots, and there are ``MIN_JOBS``."""
    return settings.max_jobs or max(MIN_JOBS, settings.max_slots or default_slots(device))


def num_models(settings: WorkerSettings) -> int:
    """The most models that a worker may hold at once."""
    if settings.model_folder is not None:  # more models may be registered later
        return settings.max_models
    further = settings.further_models.keys() - {full_name(settings.model or DEFAULT_MODEL)}
    return min(settings.max_models, 1 + len(further))


def _share_bytes(settings: WorkerSettings, device: torch.device) -> int | None:
    """Memory for one model; None means no limit."""
    if settings.memory_mb is not None:
        return settings.memory_mb * 2**20 // num_models(settings)
    if device.type == "cpu":
        return None
    free_bytes = describe_device(device).memory_free_bytes
    return None if free_bytes is None else int(free_bytes * GPU_MEMORY_SHARE) // num_models(settings)


def _load_pair(wanted: Loadable) -> CheckpointPair:
    """Load a pair onto the CPU. A registered model must still have its registered files."""
    if isinstance(wanted, RegisteredModel):
        wanted.verify()
        return load_pair(wanted.folder)
    return load_pair(**asdict(wanted))


def _metadata(wanted: Loadable) -> dict[str, Any]:
    """A model's metadata, as far as it has some."""
    if isinstance(wanted, RegisteredModel):
        return wanted.metadata.model_dump()
    return read_metadata(wanted.model or DEFAULT_MODEL)


def _lookbacks(metadata: dict[str, Any]) -> dict[str, int]:
    """The most and the fewest bars of lookback in the model's training, as far as they are known."""
    found = {name: metadata.get(name) for name in ("lookback", "min_lookback")}
    return {name: bars for name, bars in found.items() if isinstance(bars, int)}


def _model_info(pair: CheckpointPair, wanted: Loadable) -> ModelInfo:
    if isinstance(wanted, RegisteredModel):
        name, version = wanted.name, str(wanted.version)
        return ModelInfo(id=name, revision=version, tokenizer_id=name, tokenizer_revision=version)
    model, tokenizer = pair.model.checkpoint, pair.tokenizer.checkpoint
    assert model is not None
    assert tokenizer is not None
    return ModelInfo(
        id=model.id, revision=model.revision, tokenizer_id=tokenizer.id, tokenizer_revision=tokenizer.revision
    )
