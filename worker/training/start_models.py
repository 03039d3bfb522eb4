"""Which checkpoints a finetuning job may start from. No torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.registry.model_registry import ModelRegistry
from kronos_client.registry.registered_model import RegisteredModel
from kronos_model.checkpoints.source import bundled_names
from kronos_model.errors import CheckpointError
from kronos_model.finetuning.config import DEFAULT_MODEL, FinetuneConfig
from kronos_model.text import excerpt
from worker.settings import WorkerSettings

Part = Literal["model", "tokenizer"]
PARTS: tuple[Part, ...] = ("model", "tokenizer")


@dataclass(frozen=True)
class StartModels:
    """The allowed start models: bundled ones, those in the settings, and registered ones."""

    settings: WorkerSettings
    registry: ModelRegistry

    def listed(self, part: Part) -> dict[str, str | None]:
        """Bundled names and names in the settings, each with its revision in the settings."""
        settings = self.settings
        own = settings.model or DEFAULT_MODEL
        further = settings.further_models.values()
        if part == "model":
            named = {own: settings.model_revision} | {str(one.model): one.model_revision for one in further}
        else:
            named = {one.tokenizer: one.tokenizer_revision for one in further if one.tokenizer}
            if settings.tokenizer:
                named[settings.tokenizer] = settings.tokenizer_revision
        return dict.fromkeys(bundled_names()) | named

    def check(self, config: FinetuneConfig) -> tuple[FinetuneConfig, dict[Part, RegisteredModel]]:
        """The config with the revisions of the settings, and the registered models that it names.

        Raises:
            JobError: MODEL_NOT_ALLOWED; CHECKPOINT_INVALID or CHECKPOINT_MISSING for a damaged model.
        """
        registered: dict[Part, RegisteredModel] = {}
        fields: dict[str, str | None] = {}
        for part in PARTS:
            name, revision = getattr(config.start, part), getattr(config.start, f"{part}_revision")
            if not isinstance(name, str):
                continue
            allowed = self.listed(part)
            is_listed = name in allowed and revision in (None, allowed[name])
            if is_listed and not self._is_registered(name):
                fields[f"{part}_revision"] = allowed[name]
                if Path(name).is_dir() and name not in bundled_names():
                    fields[part] = str(Path(name).absolute())  # a path is not relative to the run's folder
            elif revision is None and (model := self._resolve(name, part)) is not None:
                registered[part] = model
            else:
                raise _refusal(part, name, revision, allowed)
        start = config.start.model_copy(update=fields)
        return config.model_copy(update={"start": start}), registered

    def _is_registered(self, name: str) -> bool:
        """Whether KRONOS_MODEL names this model, and it is a registered one."""
        is_own = name == self.settings.model and name not in bundled_names()
        return is_own and self.registry.resolve(name) is not None

    def _resolve(self, name: str, part: Part) -> RegisteredModel | None:
        try:
            model = self.registry.resolve(name)
            if model is not None:
                model.verify()
        except CheckpointError as error:
            raise JobError(error.code, error.message, f"config.start.{part}", error.details) from None
        return model


def _refusal(part: Part, name: str, revision: str | None, allowed: dict[str, str | None]) -> JobError:
    names = sorted(one for one in allowed if not Path(one).is_absolute())  # no job may name an absolute path
    wanted = name if revision is None else f"{name}@{revision}"
    field, may_load = f"config.start.{part}", f"{', '.join(names)} and registered models"
    remedy = "name one of them, or have KRONOS_MODELS name this one"
    text = f"{field}: this worker may load {may_load}, not {excerpt(wanted)}; {remedy}"
    return JobError(ErrorCode.MODEL_NOT_ALLOWED, text, field, {"allowed": names})
