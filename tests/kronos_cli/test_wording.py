"""Messages about jobs, in the words of the command line."""

import pytest

from kronos_cli.wording import in_own_words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("give timestamps with a time zone", "give times with a time zone"),
        ("series.0.timestamps repeat", "times repeat"),
        (
            "call it timestamps, timestamp or time, or name it: --columns timestamps=TITLE",
            "call it timestamps, timestamp or time, or name it: --columns timestamps=TITLE",
        ),
        ("a.csv, line 3, column timestamps: repeats", "a.csv, line 3, column timestamps: repeats"),
    ],
)
def test_names_of_columns_stay_as_the_file_has_them(text, expected):
    assert in_own_words(text) == expected
