"""One run of ``kronos forecast``: requests the forecasts of many files, stores and counts them."""

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from kronos_cli.files.errors import job_error
from kronos_cli.files.inputs import FileReader, ForecastWork, Source, read_work
from kronos_cli.files.output import ForecastFolder, forecast_record
from kronos_cli.terminal import progress_bar
from kronos_cli.wording import in_own_words
from kronos_client.client import ForecastClient
from kronos_client.contract.errors import JobError
from kronos_client.contract.results import SeriesForecast
from kronos_client.core.equal_jobs import announced_model
from kronos_client.core.many import FATAL_CODES, ForecastOutcome
from kronos_client.core.options import ForecastOptions
from kronos_model.checkpoints.names import full_name
from kronos_model.errors import CheckpointError

INTERRUPTED: Final = 130
MAX_LISTED: Final = 3
ANSWERS: Final = {"events", "statistics"}


@dataclass
class Tally:
    """The outcomes of a run.

    Attributes:
        warned: the files that each warning is about.
        answers: the chances and statistics that were asked for, with the name of each forecast.
        error: what ended the run early.
    """

    num_files: int
    num_forecast: int = 0
    num_unchanged: int = 0
    failed: list[dict[str, Any]] = field(default_factory=list)
    warned: dict[str, list[str]] = field(default_factory=dict)
    answers: list[tuple[str, SeriesForecast]] = field(default_factory=list)
    is_interrupted: bool = False
    error: dict[str, str] | None = None

    def fail(self, path: Path, error: JobError) -> None:
        entry = {"file": str(path), "code": error.code, "message": error.message, "field": error.field}
        self.failed.append(entry)

    def warn(self, path: Path, text: str) -> None:
        self.warned.setdefault(in_own_words(text), []).append(str(path))

    @property
    def warnings(self) -> list[str]:
        """Each warning once, with the first files that it is about."""
        if self.num_files == 1:
            return list(self.warned)
        return [f"{_listed(files)}: {text}" for text, files in self.warned.items()]

    @property
    def num_done(self) -> int:
        return self.num_forecast + self.num_unchanged + len(self.failed)

    @property
    def exit_status(self) -> int:
        return INTERRUPTED if self.is_interrupted else 1 if self.failed else 0

    def as_dict(self, output: Path) -> dict[str, Any]:
        """The summary that ``--json`` prints."""
        return {
            "output": str(output),
            "files": self.num_files,
            "forecast": self.num_forecast,
            "unchanged": self.num_unchanged,
            "failed": self.failed,
            "left": self.num_files - self.num_done,
            "interrupted": self.is_interrupted,
            "warnings": self.warnings,
            "answers": [
                {"series": name, **answer.model_dump(mode="json", include=ANSWERS)}
                for name, answer in self.answers
            ],
            "error": self.error,
        }


@dataclass
class ForecastRun:
    """One run of the command over its files. The command's help describes the options.

    Attributes:
        num_paths: of a forecast, if the options have no ``sample_count``.
    """

    client: ForecastClient
    inputs: Mapping[str, Source]
    reader: FileReader
    output: ForecastFolder
    lookback: int
    options: ForecastOptions
    max_in_flight: int
    timeout_s: float | None
    fresh: bool
    plot: bool
    overwrite: bool
    num_paths: int
    model_folder: Path | None = None

    def __post_init__(self) -> None:
        self._up_to_date: set[str] = set()
        self.tally = Tally(len(self.inputs))

    def run(self, console: Console) -> None:
        """Forecast all files, with a progress bar on a terminal. An error keeps the finished forecasts.

        Raises:
            OutputExists: A file would be replaced. No job was sent.
            JobError: Every other file would fail as well.
            KronosError: A forecast cannot be written.
        """
        progress = progress_bar(console, "Forecast", "files")
        bar = progress.add_task("forecast", total=len(self.inputs))

        def show() -> None:
            progress.update(bar, completed=self.tally.num_done)

        # SIGTERM, which service managers send, acts like Ctrl-C: running jobs are cancelled.
        with _handled_by(signal.default_int_handler, signal.SIGTERM), self.output:
            self.output.claim({name: self._charts(name) for name in self.inputs}, overwrite=self.overwrite)
            outcomes: Any = self.client.forecast_many(  # closing it early cancels the running jobs
                ((work, work.candles, {"timezone": work.timezone}) for work in self._works(show)),
                in_order=False, forget=True, max_in_flight=self.max_in_flight, timeout_s=self.timeout_s,
                **self.options,
            )  # fmt: skip
            try:
                with progress, closing(outcomes):
                    for outcome in outcomes:
                        if outcome.error is not None and outcome.error.code in FATAL_CODES:
                            raise JobError(
                                outcome.error.code, in_own_words(outcome.error.message), outcome.error.field
                            )
                        self._keep(outcome)
                        show()
            except KeyboardInterrupt:
                self.tally.is_interrupted = True
            finally:
                # Forecasts that this run did not reach may come from other options.
                self.output.finish(name for name in self.inputs if name in self._up_to_date)

    def _works(self, show: Callable[[], object]) -> Iterator[ForecastWork]:
        """Yield the files to forecast, and count the others. ``show`` is called before each file."""
        model = None if self.fresh else self._model_now()
        asked: ForecastOptions = {"sample_count": self.num_paths, **self.options}
        for name, source in self.inputs.items():
            show()
            try:
                work = read_work(name, source, self.reader, self.lookback, asked)
            except JobError as error:
                self.tally.fail(source.file, error)
                continue
            for text in work.lookback.warnings:
                self.tally.warn(source.file, text)
            if not self.fresh and self.output.has(name, work.fingerprint, self._charts(name), model):
                self.tally.num_unchanged += 1
                self._up_to_date.add(name)
            else:
                yield work

    def _model_now(self) -> str | None:
        """The version that a job gets now; None if neither the model folder nor ready workers say it."""
        from kronos_client.registry.model_registry import ModelRegistry  # httpx2

        name, found = self.options.get("model"), None
        with suppress(JobError, CheckpointError):  # Redis is away, or the model is damaged
            if name is not None and self.model_folder is not None:
                found = ModelRegistry(self.model_folder).resolve(name)
            if found is not None:
                return found.reference
            model = announced_model(full_name(name) if name else None, self.client.workers())
            return None if model is None else f"{model.id}@{model.revision}"
        return None

    def _keep(self, outcome: ForecastOutcome) -> None:
        work: Any = outcome.key  # the ForecastWork that was sent
        result = outcome.result
        if result is None:
            assert outcome.error is not None, "an outcome is a result or an error"
            self.tally.fail(work.file, job_error(outcome.error, work.lookback))
            return
        (series,) = result.series
        for chart in self._charts(work.name):  # before the record, which states that all files exist
            from kronos_client.contract.chart import draw_chart  # matplotlib

            draw_chart(work.candles, series, chart, name=work.name, note=result.origin(series))
        record = forecast_record(work.name, work.source, outcome.job_id, result)
        received: list[int] = []
        with _handled_by(lambda number, _: received.append(number), signal.SIGINT, signal.SIGTERM):
            self.output.put(work.fingerprint, record)  # not interrupted: every stored forecast is counted
            self.tally.num_forecast += 1
            self._up_to_date.add(work.name)
        if received:
            raise KeyboardInterrupt
        answers = {name: getattr(series, name) for name in ANSWERS}  # without what takes memory
        if any(answers.values()):
            self.tally.answers.append((work.name, SeriesForecast.model_construct(**answers)))
        for text in filter(None, [result.device_warning, *result.all_warnings()]):
            self.tally.warn(work.file, text)

    def _charts(self, name: str) -> list[Path]:
        return [self.output.charts / f"{name}.png"] if self.plot else []


def _listed(files: Sequence[str]) -> str:
    """The first files, and how many more."""
    first = list(dict.fromkeys(files))
    rest = len(first) - MAX_LISTED
    return ", ".join(first[:MAX_LISTED]) + (f" and {rest} more" if rest > 0 else "")


@contextmanager
def _handled_by(handler: Callable[[int, Any], object], *numbers: signal.Signals) -> Iterator[None]:
    """Use another handler for these signals. Call it in the main thread."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
