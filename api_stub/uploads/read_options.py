"""How to read an uploaded file: query parameters, the same for every route that takes files."""

from typing import Annotated, Literal

from fastapi import Depends, Query
from pydantic import BaseModel, Field

from kronos_client.contract.errors import ErrorCode, JobError
from kronos_model.bars.files.options import MAPPED, ReadOptions
from kronos_model.bars.missing import Missing
from kronos_model.errors import CandleFileError


class ReadQuery(BaseModel):
    """``ReadOptions`` as a query. What is empty counts as left out."""

    column: list[str] | None = Field(
        default=None,
        max_length=len(MAPPED),
        description="our name and the file's name of a column, if they differ, such as `close:Adj Close`",
    )
    id_column: str | None = Field(
        default=None, max_length=100, description="column that names the instrument, if the file has several"
    )
    date_format: str | None = Field(
        default=None,
        max_length=100,
        description="form of the times as in Python's strptime, such as `%d/%m/%Y`, where it cannot be found",
    )
    decimal: Literal[".", ","] | None = Field(
        default=None, description="decimal sign of the numbers, where it cannot be found"
    )
    missing: Missing = Field(
        default="error", description="rows without prices: error, ffill (the close before) or drop"
    )
    drop_bad_rows: bool = Field(
        default=False, description="leave unusable rows out and count them; else the first one is an error"
    )
    reject_impossible: bool = Field(
        default=False, description="whether an open or close outside low to high makes a row unusable"
    )


# async, because FastAPI runs sync dependencies on threads.
async def _read_options(given: Annotated[ReadQuery, Query()]) -> ReadOptions:
    options = {name: value for name, value in given if value}
    try:
        return ReadOptions.parse(options.pop("column", []), ":", **options)
    except CandleFileError as error:
        raise JobError(ErrorCode.BAD_VALUE, f"column: {error.message}", "column") from None


ReadOptionsDependency = Annotated[ReadOptions, Depends(_read_options)]


def query_field(field: str | None) -> str:
    """The parameter that a reader's error is about, or the body."""
    if field in ("date_format", "decimal"):
        return field
    return "column" if field in MAPPED else {"instrument": "id_column"}.get(str(field), "body")
