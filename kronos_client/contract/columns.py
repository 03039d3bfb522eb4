"""A column of numbers on the wire: a JSON array, or base64 of little-endian float32.

Both mean the same, as the model computes in float32. Base64 is shorter, and read about twice as fast.
"""

import base64
import binascii
import sys
from collections.abc import Sequence
from typing import Annotated, Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import PlainSerializer, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from kronos_client.contract.errors import ErrorCode

WIRE_DTYPE: Final = np.dtype("<f4")
NUMBER_TYPES: Final = {int, float}


class ColumnError(ValueError):
    """A column that cannot be decoded; ``code`` is an ``ErrorCode``, ``row`` the first value at fault."""

    def __init__(self, code: ErrorCode, message: str, row: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.row = row


def encode_column(values: ArrayLike) -> str:
    """Values (T,) as base64 of little-endian float32."""
    return base64.b64encode(np.ascontiguousarray(values, dtype=WIRE_DTYPE).tobytes()).decode("ascii")


def decode_column(column: str | Sequence[float]) -> NDArray[np.float64]:
    """Values (T,) of a column in either form.

    Raises:
        ColumnError: BAD_ENCODING if a string is not base64 of whole float32 values; VALUE_TOO_LARGE if a
            number does not even fit a double.
    """
    if not isinstance(column, str):
        try:
            return np.array(column, dtype=np.float64)
        except OverflowError:
            row = next(row for row, value in enumerate(column) if abs(value) > sys.float_info.max)
            raise ColumnError(
                ErrorCode.VALUE_TOO_LARGE, f"row {row} holds a number too large for a float", row
            ) from None
    try:
        data = base64.b64decode(column, validate=True)
    except (binascii.Error, ValueError):  # ValueError: characters beyond ASCII
        raise ColumnError(
            ErrorCode.BAD_ENCODING, "is not base64 (the standard alphabet, padded): encode it anew"
        ) from None
    if len(data) % WIRE_DTYPE.itemsize:
        raise ColumnError(
            ErrorCode.BAD_ENCODING,
            f"decodes to {len(data)} bytes, which are no whole float32 values of 4 bytes each",
        )
    return np.frombuffer(data, dtype=WIRE_DTYPE).astype(np.float64)


def num_values(column: str | Sequence[float]) -> int:
    """The number of values in a column, computed from its length alone."""
    if not isinstance(column, str):
        return len(column)
    return (len(column) // 4 * 3 - column[-2:].count("=")) // WIRE_DTYPE.itemsize


def _read(column: Any) -> str | tuple[float, ...]:
    """Check the form only; ``decode_column`` reads the content."""
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
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "array", "items": {"type": "number"}},
                {
                    "type": "string",
                    "contentEncoding": "base64",
                    "description": "base64 of little-endian float32, one value a bar",
                },
            ]
        }
    ),
]
"""A column as it stands in a job; ``decode_column`` reads it."""
