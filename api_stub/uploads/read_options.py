"""How to read an uploaded file: query parameters, the same for every route that takes files."""

from typing import Annotated, Literal

from fastapi import Depends, Query

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_model.bars.files.options import MAPPED, ReadOptions
from kronos_model.errors import CandleFileError

Columns = Annotated[
    list[str] | None,
    Query(
        alias="column",
        max_length=len(MAPPED),
        description="our name and the file's name of a column, if they differ, such as `close:Adj Close`",
    ),
]
IdColumn = Annotated[
    str | None, Query(max_length=100, description="column that names the instrument, if the file has several")
]
DateFormat = Annotated[
    str | None,
    Query(
        max_length=100,
        description="form of the times as in Python's strptime, such as `%d/%m/%Y`, where it cannot be found",
    ),
]
Decimal = Annotated[
    Literal[".", ","] | None, Query(description="decimal sign of the numbers, where it cannot be found")
]
DropBadRows = Annotated[
    bool, Query(description="leave unusable rows out and count them; else the first one is an error")
]
RejectImpossible = Annotated[
    bool, Query(description="whether an open or close outside low to high makes a row unusable")
]


# async, because FastAPI runs sync dependencies on threads.
async def _read_options(
    columns: Columns = None,
    id_column: IdColumn = None,
    date_format: DateFormat = None,
    decimal: Decimal = None,
    drop_bad_rows: DropBadRows = False,
    reject_impossible: RejectImpossible = False,
) -> ReadOptions:
    try:
        return ReadOptions.parse(
            columns or [],
            ":",
            id_column=id_column or None,
            date_format=date_format or None,
            decimal=decimal,
            drop_bad_rows=drop_bad_rows,
            reject_impossible=reject_impossible,
        )
    except CandleFileError as error:
        raise JobError(ErrorCode.BAD_VALUE, f"column: {error.message}", "column") from None


ReadOptionsDependency = Annotated[ReadOptions, Depends(_read_options)]


def query_field(field: str | None) -> str:
    """The parameter that a reader's error is about, or the body."""
    if field in ("date_format", "decimal"):
        return field
    return "column" if field in MAPPED else {"instrument": "id_column"}.get(str(field), "body")
