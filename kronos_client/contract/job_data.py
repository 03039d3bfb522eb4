"""The candles of a finetuning job or backtest: files that the worker sees, or the candles themselves."""

from typing import Annotated, Any, Final, Self

from pydantic import Field, PlainSerializer, PlainValidator, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from kronos_client.contract.forecast import CandleInput, WireModel, check_ids

MAX_DATA_PATHS: Final = 1000
MAX_PATH_CHARS: Final = 1000
PATH_SCHEMA: Final = {"type": "string", "minLength": 1}


def _paths(value: Any) -> str | tuple[str, ...]:
    """Check by hand: an error then names its place in the list, not each type that pydantic tried."""
    if isinstance(value, str):
        _check_path(value, {})
        return value
    if not isinstance(value, list | tuple):
        raise PydanticCustomError("paths_type", "a string, or an array of them")
    if not 1 <= len(value) <= MAX_DATA_PATHS:
        raise PydanticCustomError("num_paths", f"an array of 1 to {MAX_DATA_PATHS}")
    for index, path in enumerate(value):
        if not isinstance(path, str):
            raise PydanticCustomError("path_type", "a string", {"index": index})
        _check_path(path, {"index": index})
    return tuple(value)


def _check_path(path: str, context: dict[str, Any]) -> None:
    if not 1 <= len(path) <= MAX_PATH_CHARS or not path.isprintable():
        raise PydanticCustomError("path", f"1 to {MAX_PATH_CHARS} printable characters", context)
    if path.startswith(("/", "~")) or "\\" in path or ".." in path.split("/"):
        raise PydanticCustomError(
            "path_outside", "relative to the worker's data folder, with / and without ..", context
        )


DataPaths = Annotated[
    str | tuple[str, ...],
    PlainValidator(_paths),
    PlainSerializer(lambda paths: paths, return_type=Any),
    WithJsonSchema(
        {
            "anyOf": [
                PATH_SCHEMA,
                {"type": "array", "items": PATH_SCHEMA, "minItems": 1, "maxItems": MAX_DATA_PATHS},
            ]
        }
    ),
]


class JobData(WireModel):
    """Files that the worker sees, or the candles themselves."""

    path: DataPaths | None = Field(
        default=None,
        description="CSV or Parquet files, or folders of them, relative to the worker's data folder",
    )
    instruments: (
        Annotated[tuple[CandleInput, ...], Field(strict=False, min_length=1, fail_fast=True)] | None
    ) = Field(default=None, description="the candles themselves, for small data")

    @property
    def paths(self) -> tuple[str, ...]:
        """The files and folders; none if the job carries its candles."""
        return (self.path,) if isinstance(self.path, str) else self.path or ()

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        if self.path is None and self.instruments is None:
            raise PydanticCustomError("no_data", "is empty: add path or instruments")
        if self.path is not None and self.instruments is not None:
            raise PydanticCustomError(
                "two_kinds_of_data", "has both path and instruments: remove one of them"
            )
        check_ids(self.instruments or (), "data.instruments")
        return self
