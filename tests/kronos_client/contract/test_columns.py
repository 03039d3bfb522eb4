import base64

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kronos_client.contract.columns import decode_column, encode_column, num_values
from kronos_client.contract.errors import JobError


@given(values=arrays(np.float32, st.integers(0, 50), elements=st.floats(width=32)))
def test_what_is_encoded_decodes_to_the_same(values: np.ndarray) -> None:
    column = encode_column(values)

    # Of its own process's column the values are known, and of its text they are decoded.
    for decoded in (decode_column(column), decode_column(str(column))):
        assert decoded.dtype == np.float64
        assert np.array_equal(decoded.astype(np.float32), values, equal_nan=True)
    assert num_values(column) == len(values)


def test_the_encoding_is_little_endian_float32() -> None:
    assert encode_column([1.0, -2.5]) == base64.b64encode(bytes.fromhex("0000803f000020c0")).decode()
    assert encode_column(np.array([1.0], dtype=">f8")) == encode_column(np.array([1.0], dtype="<f4"))


@given(values=st.lists(st.floats(allow_nan=False) | st.integers(-(2**60), 2**60), max_size=20))
def test_an_array_of_numbers_is_read_as_it_is(values: list[float]) -> None:
    assert decode_column(values).tolist() == [float(value) for value in values]
    assert num_values(values) == len(values)


@pytest.mark.parametrize(
    "column", ["%%%%", "AAA", "AAAA=A==", "AAAAAA\n==", "AAAAAA", "__-_", "ü", "AAAAAA==AAAA", "\ud800"]
)
def test_what_is_not_base64_is_refused(column: str) -> None:
    with pytest.raises(JobError) as caught:
        decode_column(column)

    assert caught.value.code == "BAD_ENCODING"
    assert "base64" in caught.value.message


ODD_CHARACTERS = st.sampled_from([*'A9+/=-_"\\u \né\0\ud800', ""])


@given(
    values=arrays(np.float32, st.integers(1, 9), elements=st.floats(width=32)),
    changes=st.lists(st.tuples(st.integers(0, 47), ODD_CHARACTERS), max_size=3),
)
def test_base64_is_read_as_python_reads_it(values: np.ndarray, changes: list[tuple[int, str]]) -> None:
    column = encode_column(values)
    for place, char in changes:
        column = column[:place] + char + column[place + 1 :]
    try:
        expected = base64.b64decode(column, validate=True)
    except ValueError:
        expected = b"broken"
    if len(expected) % 4:
        with pytest.raises(JobError, match="BAD_ENCODING"):
            decode_column(column)
    else:
        np.testing.assert_array_equal(decode_column(column), np.frombuffer(expected, "<f4"))


@pytest.mark.parametrize("num_bytes", [1, 3, 5, 6, 7, 4001])
def test_broken_values_are_refused(num_bytes: int) -> None:
    with pytest.raises(JobError) as caught:
        decode_column(base64.b64encode(bytes(num_bytes)).decode())

    assert caught.value.code == "BAD_ENCODING"
    assert str(num_bytes) in caught.value.message


def test_a_number_beyond_any_float_is_refused_with_its_row() -> None:
    with pytest.raises(JobError) as caught:
        decode_column([1.0, 2, 10**400])

    assert (caught.value.code, caught.value.details["row"]) == ("VALUE_TOO_LARGE", 2)
