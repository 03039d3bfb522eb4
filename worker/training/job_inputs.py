"""What a finetuning job may read, and the files of its training process. No torch."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.finetune import FinetuneJob
from kronos_client.contract.jobs import prepare_instruments
from kronos_client.registry.model_registry import ModelRegistry
from kronos_client.registry.registered_model import RegisteredModel
from kronos_model.checkpoints.names import bundled_names, comes_from_bundled, did_you_mean, full_name
from kronos_model.errors import CheckpointError
from kronos_model.finetuning.config import DEFAULT_MODEL, FinetuneConfig
from kronos_model.text import excerpt
from worker.settings import WorkerSettings
from worker.training.finetune_process import FinetuneProcess
from worker.training.job_folder import CANDLES, CONFIG_FILE, INSTRUMENT_COLUMN, JobFolder, JobNotes

Part = Literal["model", "tokenizer"]
PARTS: Final[tuple[Part, ...]] = ("model", "tokenizer")
PATH_FIELD: Final = "data.path"
DATA_LINK: Final = "data"
START_LINKS: Final = "start"


def check_path(data_folder: Path | None, path: str) -> Path:
    """Resolve a job's path, a file or a folder. No link in it may lead out of the data folder.

    Raises:
        JobError: DATA_NOT_ALLOWED, also for a missing path: a job must not find out what is outside.
    """
    if data_folder is None:
        raise _data_refusal("this worker has no data folder (KRONOS_DATA_FOLDER); send candles inline")
    if Path(path).is_absolute() or ".." in Path(path).parts or "\0" in path:
        raise _data_refusal(f"{excerpt(path)} is not relative to the data folder")
    root = data_folder.resolve()
    try:
        named = (root / path).resolve(strict=True)
        if not named.is_relative_to(root):
            raise _data_refusal(f"{excerpt(path)} leads out of the data folder")
        for entry in named.rglob("*"):  # follows no links to folders; readers do not follow them either
            if entry.is_symlink() and not entry.resolve().is_relative_to(root):
                inside = excerpt(str(entry.relative_to(root)))
                raise _data_refusal(f"{inside} is a link that leads out of the data folder")
    except (OSError, RuntimeError, ValueError) as error:  # links in a circle, or no valid file name
        raise _data_refusal(f"{excerpt(path)} cannot be read in the worker's KRONOS_DATA_FOLDER") from error
    return named


def _data_refusal(reason: str) -> JobError:
    return JobError(ErrorCode.DATA_NOT_ALLOWED, f"{PATH_FIELD}: {reason}", PATH_FIELD)


def check_start(
    config: FinetuneConfig, settings: WorkerSettings, registry: ModelRegistry
) -> tuple[FinetuneConfig, dict[Part, RegisteredModel]]:
    """The config with the revisions of the settings, and the registered models that it starts from.

    A job may start from bundled models, those in the settings, and registered ones.

    Raises:
        JobError: MODEL_NOT_ALLOWED; CHECKPOINT_INVALID or CHECKPOINT_MISSING for a damaged model.
    """
    registered: dict[Part, RegisteredModel] = {}
    fields: dict[str, str | None] = {}
    for part in PARTS:
        name, revision = getattr(config.start, part), getattr(config.start, f"{part}_revision")
        if not isinstance(name, str):
            continue
        if full_name(name) != name and registry.resolve(name) is None:
            name = full_name(name)
        is_bundled, listed = name in bundled_names(), _listed_models(settings, part)
        is_listed = name in listed and revision in (None, listed[name])
        if is_listed and name == full_name(settings.model or "") and not is_bundled:
            is_listed = registry.resolve(name) is None  # the worker's own model may be a registered one
        if is_listed:
            fields[f"{part}_revision"] = listed[name]
            if Path(name).is_dir() and not is_bundled:
                fields[part] = str(Path(name).absolute())  # a path is not relative to the run's folder
            continue
        model = _intact_model(registry, name, part) if revision is None else None
        if model is None:
            raise _model_refusal(part, name, revision, listed, registry)
        registered[part] = model
    tokenizer = registered.get("model" if config.start.tokenizer is None else "tokenizer")
    is_computed = tokenizer is not None and comes_from_bundled(tokenizer.metadata.model_dump())
    if is_computed and "stages" not in config.model_fields_set:
        config = config.model_copy(update={"stages": ("predictor",)})  # as from the bundled model itself
    return with_start(config, fields), registered


def _listed_models(settings: WorkerSettings, part: Part) -> dict[str, str | None]:
    """Bundled names and names in the settings, each with its revision in the settings."""
    own = full_name(settings.model or DEFAULT_MODEL)
    further = settings.further_models.values()
    if part == "model":
        named = {own: settings.model_revision} | {str(spec.model): spec.model_revision for spec in further}
    else:
        named = {spec.tokenizer: spec.tokenizer_revision for spec in further if spec.tokenizer}
        if settings.tokenizer:
            named[settings.tokenizer] = settings.tokenizer_revision
    return dict.fromkeys(bundled_names()) | named


def _intact_model(registry: ModelRegistry, name: str, part: Part) -> RegisteredModel | None:
    try:
        model = registry.resolve(name)
        if model is not None:
            model.verify()
    except CheckpointError as error:
        raise JobError(error.code, error.message, f"config.start.{part}", error.details) from None
    return model


def _model_refusal(
    part: Part, name: str, revision: str | None, listed: Iterable[str], registry: ModelRegistry
) -> JobError:
    allowed = sorted(name for name in listed if not Path(name).is_absolute())  # no job may name such a path
    wanted = name if revision is None else f"{name}@{revision}"
    field, may_load = f"config.start.{part}", f"{', '.join(allowed)} and registered models"
    nearest = did_you_mean(name, [*allowed, *registry.names(name)])
    remedy = f"name one of them, or have KRONOS_MODELS name this one{nearest}"
    text = f"{field}: this worker may load {may_load}, not {excerpt(wanted)}; {remedy}"
    return JobError(ErrorCode.MODEL_NOT_ALLOWED, text, field, {"allowed": allowed})


def with_start(config: FinetuneConfig, fields: Mapping[Any, str | None]) -> FinetuneConfig:
    """The config with these fields of ``start``."""
    return config.model_copy(update={"start": config.start.model_copy(update=fields)})


def write_inputs(job: FinetuneJob, notes: JobNotes, folder: JobFolder, process: FinetuneProcess) -> JobNotes:
    """Write the config of a job's training process, its candles, and links to data and models.

    Every worker writes the same files. The returned notes pin the job's start models.

    Raises:
        JobError: The job may not read its data, or may not start from its models.
    """
    data = job.data
    for path in data.paths:
        check_path(process.data_folder, path)
    if data.instruments is not None:
        config = job.finetune_config(CANDLES)
        columns = {"id_column": INSTRUMENT_COLUMN}
        config = config.model_copy(update={"data": config.data.model_copy(update=columns)})
    else:
        config = job.finetune_config(tuple(f"{DATA_LINK}/{path}" for path in data.paths))
    config, registered = check_start(with_start(config, notes.start), process.settings, process.registry)
    references = {part: model.reference for part, model in registered.items()}
    notes = replace(notes, start=notes.start | references)
    folder.write_notes(notes)
    links = {part: f"{START_LINKS}/{reference}" for part, reference in references.items()}
    for part, model in registered.items():
        folder.link(links[part], model.folder)
    config = with_start(config, links)
    if "model" in registered and config.max_context is None:
        config = config.model_copy(update={"max_context": registered["model"].metadata.max_context})
    if data.instruments is not None:
        folder.write_candles(prepare_instruments(data.instruments))
    elif process.data_folder is not None:
        folder.link(DATA_LINK, process.data_folder)
    folder.write(CONFIG_FILE, config.model_dump(mode="json"))
    return notes


def without_links(metadata: Mapping[str, Any], job: FinetuneJob, notes: JobNotes) -> dict[str, Any]:
    """A trained model's metadata, with the job's own names in place of links."""
    references = {f"{START_LINKS}/{reference}": reference for reference in notes.start.values()}

    def named(parts: Mapping[str, object]) -> dict[str, object]:
        # A part that is trained from scratch has a shape and no name.
        return {
            part: references.get(name, name) if isinstance(name, str) else name
            for part, name in parts.items()
        }

    config = metadata["config"] | {
        "start": named(metadata["config"]["start"]),
        "data": metadata["config"]["data"] | {"path": job.data.path},
    }
    return {**metadata, "parent": named(metadata["parent"]), "config": config}
