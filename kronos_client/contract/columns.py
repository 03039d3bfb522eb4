"""A column of numbers on the wire: a JSON array, or base64 of little-endian float32.

Both mean the same, as the model computes in float32. Base64 is shorter, and read about three times as fast.
"""

import base64
import sys
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import PlainSerializer, PlainValidator, WithJsonSchema
from pydantic_core import CoreConfig, PydanticCustomError, SchemaValidator, ValidationError
from pydantic_core.core_schema import bytes_schema

from kronos_client.contract.errors import ErrorCode, JobError

ColumnName = Literal["open", "high", "low", "close", "volume", "amount"]
WIRE_DTYPE: Final = np.dtype("<f4")
NUMBER_TYPES: Final = {int, float, type(None)}
"""A null is a missing value, as NaN is in base64."""
BASE64_SCHEMA: Final = {
    "type": "string",
    "contentEncoding": "base64",
    "description": "base64 of little-endian float32, one value a bar",
}
_BASE64: Final = SchemaValidator(bytes_schema(), CoreConfig(val_json_bytes="base64"))


class EncodedColumn(str):
    """A column in base64, with its values. The process that made it checks its job without decoding it."""

    values: NDArray[np.float32]


def encode_column(values: ArrayLike) -> EncodedColumn:
    """Values (T,) as base64 of little-endian float32."""
    own = np.ascontiguousarray(values, dtype=WIRE_DTYPE)
    column = EncodedColumn(base64.b64encode(own.tobytes()).decode("ascii"))
    column.values = own
    return column


def shortest(values: NDArray[np.floating[Any]]) -> list[Any]:
    """The shortest numbers that mean the same float32: 0.1, not 0.10000000149011612; None for NaN."""
    return [None if np.isnan(value) else float(str(value)) for value in values.astype(np.float32)]


def decode_base64(text: str) -> bytes:
    """Decode base64 of the standard alphabet, padded. Raises ValueError."""
    # pydantic_core takes a fifth of the time. It also reads the other alphabet and missing padding.
    if len(text) % 4 == 0 and "-" not in text and "_" not in text:
        try:
            return bytes(_BASE64.validate_strings(text))  # type: ignore[arg-type]
        except ValidationError:  # perhaps for spare bits that are not zero, which Python ignores
            pass
    return base64.b64decode(text, validate=True)


def decode_column(column: str | Sequence[float], field: str = "column") -> NDArray[np.float64]:
    """Values (T,) of a column in either form; ``field`` is its name in errors.

    Raises:
        JobError: BAD_ENCODING if a string is not base64 of whole float32 values; VALUE_TOO_LARGE, with its
            row, if a number does not even fit a double.
    """
    if isinstance(column, EncodedColumn):
        return column.values.astype(np.float64)
    if not isinstance(column, str):
        try:
            return np.array(column, dtype=np.float64)
        except OverflowError:
            row = next(row for row, value in enumerate(column) if abs(value or 0) > sys.float_info.max)
            message = f"{field} row {row} holds a number too large for a float"
            raise JobError(ErrorCode.VALUE_TOO_LARGE, message, field, {"row": row}) from None
    try:
        data = decode_base64(column)
    except ValueError:
        message = f"{field} is not base64 (the standard alphabet, padded): encode it anew"
        raise JobError(ErrorCode.BAD_ENCODING, message, field) from None
    if len(data) % WIRE_DTYPE.itemsize:
        message = (
            f"{field} decodes to {len(data)} bytes, not a multiple of 4: send float32 values of 4 bytes each"
        )
        raise JobError(ErrorCode.BAD_ENCODING, message, field)
    return np.frombuffer(data, dtype=WIRE_DTYPE).astype(np.float64)


def num_values(column: str | Sequence[float]) -> int:
    """The number of values in a column, computed from its length alone."""
    if not isinstance(column, str):
        return len(column)
    return (len(column) // 4 * 3 - column[-2:].count("=")) // WIRE_DTYPE.itemsize


def _read(column: Any) -> str | tuple[float, ...]:
    """Check the form only."""
    if isinstance(column, str):
        return column
    if not isinstance(column, list | tuple):
        raise PydanticCustomError("column_type", "an array of numbers, or base64 of little-endian float32")
    if not set(map(type, column)) <= NUMBER_TYPES:
        row = next(row for row, value in enumerate(column) if type(value) not in NUMBER_TYPES)
        raise PydanticCustomError("column_value_type", "a number in row {row}", {"row": row})
    return tuple(column)


Column = Annotated[
    str | tuple[float, ...],
    PlainValidator(_read),
    PlainSerializer(lambda column: column, return_type=Any),
    WithJsonSchema({"anyOf": [{"type": "array", "items": {"type": ["number", "null"]}}, BASE64_SCHEMA]}),
]
"""A column as it stands in a job; ``decode_column`` reads it."""
