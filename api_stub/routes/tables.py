"""Forecasts as tables: CSV, Parquet or Arrow, if the request's Accept prefers one to JSON."""

import asyncio
import io
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, Final

from fastapi import Depends, Request
from fastapi.responses import Response

from kronos_client.contract.results import SeriesForecast, forecast_columns
from kronos_model.checkpoints.names import caution_in

TEXTS: Final = ("series", "timestamp", "caution")
JSON: Final = ("application/json", "application/*", "*/*")


def _write_csv(table: Any, sink: io.BytesIO) -> None:
    from pyarrow import csv  # pyarrow takes memory and time to import: only if a table is asked for

    csv.write_csv(table, sink, csv.WriteOptions(quoting_style="needed", quoting_header="needed"))


def _write_parquet(table: Any, sink: io.BytesIO) -> None:
    from pyarrow import parquet

    parquet.write_table(table, sink)


def _write_arrow(table: Any, sink: io.BytesIO) -> None:
    from pyarrow import ipc

    with ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)


WRITERS: Final[Mapping[str, Callable[[Any, io.BytesIO], None]]] = {
    "text/csv": _write_csv,
    "application/vnd.apache.parquet": _write_parquet,
    "application/vnd.apache.arrow.stream": _write_arrow,
}

AS_TABLES: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "as JSON, or as a table of one row per bar; X-Warnings is a JSON list of warnings",
        "content": {media_type: {"schema": {"type": "string", "format": "binary"}} for media_type in WRITERS},
    }
}
"""For FastAPI's ``responses``."""


def preferred(accept: str, offered: Collection[str]) -> str | None:
    """The media type that this Accept header prefers; None if it prefers JSON, or none of those offered."""
    ranked = []
    for part in accept.split(","):
        media_type, *parameters = (text.strip().lower() for text in part.split(";"))
        weights = [text.removeprefix("q=") for text in parameters if text.startswith("q=")]
        try:
            ranked.append((float(weights[0]) if weights else 1.0, media_type))
        except ValueError:  # a weight that is not a number
            continue
    known = [entry for entry in ranked if entry[0] > 0 and entry[1] in (*offered, *JSON)]
    _, best = max(known, key=lambda entry: entry[0], default=(0, None))
    return best if best in offered else None


async def _preferred(request: Request) -> str | None:
    return preferred(request.headers.get("accept", ""), WRITERS)


PreferredTable = Annotated[str | None, Depends(_preferred)]


async def table_response(
    media_type: str, series: Sequence[SeriesForecast], warnings: Iterable[str], headers: Mapping[str, str]
) -> Response:
    """The rows of all series as one table. A column that some series lack is empty for them.

    ``warnings`` are in a header. That the model is only for trying is also a column, which stays in a file.
    """
    each = list(dict.fromkeys(warnings))
    body = await asyncio.to_thread(_written, media_type, series, caution_in(each))
    headers = {**headers, "Vary": "Accept"} | ({"X-Warnings": json.dumps(each)} if each else {})
    return Response(body, headers=headers, media_type=media_type)


def _written(media_type: str, series: Sequence[SeriesForecast], caution: str | None) -> bytes:
    import pyarrow as pa

    tables = []
    for forecast in series:
        columns = forecast_columns(forecast.id, dict(forecast), caution)
        for name, paths in (forecast.paths or {}).items():
            columns |= {f"{name}_path{number}": values for number, values in enumerate(paths, 1)}
        schema = pa.schema((name, pa.string() if name in TEXTS else pa.float64()) for name in columns)
        tables.append(pa.table(columns, schema=schema))
    sink = io.BytesIO()
    WRITERS[media_type](pa.concat_tables(tables, promote_options="default"), sink)
    return sink.getvalue()
