"""``kronos replay``."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
import numpy as np
from pydantic import ValidationError

from kronos_cli.commands import options
from kronos_cli.files.errors import file_error
from kronos_cli.files.inputs import FileReader
from kronos_cli.settings import get_settings
from kronos_client.client import ForecastClient
from kronos_client.contract.errors import ErrorCode, JobError, refusal
from kronos_client.contract.manifest import OF_A_SERIES, Manifest
from kronos_client.core.series import series_payload
from kronos_client.feeds.adaptive import widened_forecast
from kronos_model.bars.columns import COLUMNS
from kronos_model.bars.files.options import TIMES, ReadOptions
from kronos_model.bars.timestamps import parse_timestamps
from kronos_model.errors import CandleFileError

ALL_BARS: Final = 10**9
COMPARED: Final = ("bars", "model", "calibration", "engine", "device", "version")
"""What explains that a forecast differs."""
NO_BARS: Final = (ErrorCode.FEED_NOT_FOUND, ErrorCode.FEED_GONE)


@click.command()
@click.argument("manifest", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option("--candles", type=click.Path(path_type=Path), help="A file with bars that no feed holds.")
@options.candle_files
def replay(manifest: str, candles: Path | None, reading: ReadOptions) -> None:
    """Compute forecasts again from their manifests, and say whether they are equal. If not, say what differs.

    MANIFEST is JSON: a manifest, a job's result, or lines of `kronos feed watch`; - is standard input. The
    bars come from the feed while it holds them, else from the file. Exit status: 0 if all are equal, else 1.
    """
    are_equal = True
    with ForecastClient(settings=get_settings()) as client:
        found = list(_manifests(_documents(click.open_file(manifest).read())))
        if not found:
            raise click.UsageError(f"{manifest} has no manifest of a forecast")
        for known in found:
            try:
                again = _again(client, known, _bars(client, known, candles, reading))
            except JobError as error:
                if error.code not in NO_BARS:
                    raise
                is_equal, outcome = False, str(error)
            else:
                is_equal = again.forecast == known.forecast
                outcome = "equal" if is_equal else _difference(known, again)
            click.echo(f"{known.series}, {known.bars.last}: {outcome}")
            are_equal &= is_equal
    raise SystemExit(not are_equal)


def _documents(text: str) -> list[Any]:
    try:
        return [json.loads(text)]
    except ValueError:
        pass
    try:
        return [json.loads(line) for line in text.splitlines()]
    except ValueError as error:
        raise click.UsageError(f"MANIFEST is no JSON: {error}") from None


def _manifests(document: Any) -> Iterator[Manifest]:
    """All manifests in a document, at any depth."""
    if isinstance(document, dict) and document.keys() >= {"bars", "options", "forecast"}:
        try:
            yield Manifest.model_validate(document, strict=False)
        except ValidationError as error:
            raise refusal(error) from None
    elif isinstance(document, dict | list):
        for part in document.values() if isinstance(document, dict) else document:
            yield from _manifests(part)


def _bars(client: ForecastClient, manifest: Manifest, file: Path | None, reading: ReadOptions) -> Any:
    """The columns of the bars that the forecast was computed from. Raises JobError."""
    if manifest.feed is not None:
        try:
            with client.feed(manifest.feed) as feed:
                return _between(feed.bars(manifest.series, all_kept=True), manifest)
        except JobError as error:
            if file is None or error.code not in NO_BARS:
                raise
    if file is None:
        raise click.UsageError("no feed has these bars: give a file with --candles")
    try:
        found = FileReader(reading).open(file)
        name = manifest.series if manifest.series in found.instruments else None
        return _between(found.last(ALL_BARS, name).candles, manifest)
    except CandleFileError as error:
        raise file_error(error) from None


def _between(candles: Any, manifest: Manifest) -> dict[str, Any]:
    """The columns from the manifest's first bar to its last one."""
    texts, bars = list(candles[TIMES]), manifest.bars
    clock, ends = parse_timestamps(texts).clock, parse_timestamps([bars.first, bars.last]).clock
    rows = slice(int(np.searchsorted(clock, ends[0])), int(np.searchsorted(clock, ends[1], side="right")))
    if not np.isin(ends, clock).all():
        text = (
            f"bars of {manifest.series!r} from {bars.first} to {bars.last} are missing: give them in a file"
        )
        raise JobError(ErrorCode.FEED_GONE, f"{text} with --candles")
    columns = {name: np.asarray(candles[name])[rows] for name in COLUMNS if name in candles}
    return {TIMES: texts[rows], **columns}


def _again(client: ForecastClient, manifest: Manifest, bars: Any) -> Manifest:
    """The manifest of the same forecast, computed now."""
    given: Any = {name: manifest.options[name] for name in OF_A_SERIES & manifest.options.keys()}
    series = {**series_payload(bars, manifest.series, **given), "seed": manifest.seed}
    job = {name: value for name, value in manifest.options.items() if name not in given}
    model = manifest.model
    if (model.revision or "").isdecimal():  # a registered model's version
        job["model"] = f"{model.id}@{model.revision}"
    job |= {"device": manifest.device.partition(":")[0], "series": [series]}
    if manifest.widened_by:
        job["output"] = {**job.get("output", {}), "scoring": True}
    found = client.submit_job(job).wait().series[0]
    if manifest.widened_by:
        found = widened_forecast(found, np.array(manifest.widened_by))
    if found.manifest is None:
        raise JobError(ErrorCode.UNSUPPORTED_VERSION, "this worker's results have no manifest: update it")
    return found.manifest


def _difference(manifest: Manifest, again: Manifest) -> str:
    both = [(name, getattr(manifest, name), getattr(again, name)) for name in COMPARED]
    changed = [f"{name} was {before}, is {now}" for name, before, now in both if before != now]
    only = "only the numbers; on a GPU they also depend on what shares the batch"
    return f"differs: {'; '.join(changed) or only}"
