"""Writes the files of a job's training process: its config, its candles, and links to data and models."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kronos_client.contract.finetune import FinetuneJob
from kronos_client.contract.jobs import prepare_instruments
from worker.training.data_folder import DataFolder
from worker.training.job_folder import CANDLES, DATA_LINK, INSTRUMENT_COLUMN, START_LINKS, JobFolder, JobNotes
from worker.training.start_models import StartModels


@dataclass(frozen=True)
class JobFiles:
    """A job's files. Every worker writes the same ones."""

    job: FinetuneJob
    folder: JobFolder
    data_folder: DataFolder
    start_models: StartModels

    def place(self, notes: JobNotes, *, is_first: bool) -> JobNotes:
        """Write the files. If this worker is the first, the returned notes pin the job's start models.

        Raises:
            JobError: The job may not read its data, or may not start from its models.
        """
        paths = self.job.data.paths
        for path in paths:
            self.data_folder.check(path)
        inline = self.job.data.instruments
        config = self.job.finetune_config(
            CANDLES if inline is not None else tuple(f"{DATA_LINK}/{path}" for path in paths)
        )
        if inline is not None:
            columns = {"id_column": INSTRUMENT_COLUMN}
            config = config.model_copy(update={"data": config.data.model_copy(update=columns)})
        pinned = {} if is_first else notes.start
        config = config.model_copy(update={"start": config.start.model_copy(update=pinned)})
        config, registered = self.start_models.check(config)
        if is_first:
            notes = replace(notes, start={part: model.reference for part, model in registered.items()})
        self.folder.write_notes(notes)
        for part, model in registered.items():
            link = f"{START_LINKS}/{model.reference}"
            self.folder.link(link, model.folder)
            config = config.model_copy(update={"start": config.start.model_copy(update={part: link})})
            if part == "model" and config.max_context is None:
                config = config.model_copy(update={"max_context": model.metadata.max_context})
        if inline is not None:
            self.folder.write_candles(prepare_instruments(inline))
        elif self.data_folder.root is not None:
            self.folder.link(DATA_LINK, self.data_folder.root)
        self.folder.write("config.json", config.model_dump(mode="json"))
        return notes

    def without_links(self, metadata: Mapping[str, Any], notes: JobNotes) -> dict[str, Any]:
        """A trained model's metadata, with the job's own names in place of links."""
        references = {f"{START_LINKS}/{reference}": reference for reference in notes.start.values()}

        def named(parts: Mapping[str, Any]) -> dict[str, Any]:
            # A part that is trained from scratch has a shape and no name.
            return {
                part: references.get(name, name) if isinstance(name, str) else name
                for part, name in parts.items()
            }

        config = metadata["config"] | {
            "start": named(metadata["config"]["start"]),
            "data": metadata["config"]["data"] | {"path": self.job.data.path},
        }
        return {**metadata, "parent": named(metadata["parent"]), "config": config}
