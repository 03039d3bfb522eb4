"""How to read a candle file, where its form alone does not say it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal, NamedTuple, Self

from kronos_model.bars.columns import COLUMNS
from kronos_model.bars.missing import Missing
from kronos_model.errors import BadRow, CandleFileError, KronosError, NoPrices

TIMES: Final = "timestamps"
VALUE: Final = "value"
"""The column of a file with one value a bar, which is open, high, low and close."""
TIME_OF_DAY: Final = "time"
"""The column of times of day, if ``TIMES`` has only dates."""
MAPPED: Final = (TIMES, TIME_OF_DAY, *COLUMNS, VALUE)
"""Columns whose title in the file may be given."""


@dataclass(frozen=True)
class ReadOptions:
    """Options of reading a candle file.

    Attributes:
        columns: the file's titles of columns, by our names, where they differ.
        id_column: the column that names each row's instrument, for files with several.
        date_format: the form of the times as in Python's ``strptime``, such as ``%d/%m/%Y``.
        decimal: the decimal sign of the numbers.
        missing: what happens to rows with blank prices, or prices of zero without volume.
        drop_bad_rows: leave unusable rows out and count them. Else the first one is an error.
        reject_impossible: count a row whose open or close lies outside low to high as unusable.
        whole_lines: leave out a last line of CSV without a line end, which is being written.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    id_column: str | None = None
    date_format: str | None = None
    decimal: Literal[".", ","] | None = None
    missing: Missing = "error"
    drop_bad_rows: bool = False
    reject_impossible: bool = False
    whole_lines: ClassVar[bool] = False

    @classmethod
    def parse(cls, columns: Sequence[str], separator: str, **given: object) -> Self:
        """Options with ``columns`` as texts such as ``close=Adj Close``.

        Raises:
            CandleFileError: A text has another form, or a column occurs twice.
        """
        titles: dict[str, str] = {}
        for text in columns:
            name, _, title = text.partition(separator)
            if name not in MAPPED or not title.strip() or name in titles:
                wanted = f"give each of {', '.join(MAPPED)} at most once, as close{separator}Adj Close"
                raise CandleFileError(f"{text!r} names no column: {wanted}", field="columns")
            titles[name] = title.strip()
        return cls(columns=titles, **given)  # type: ignore[arg-type]


class OfGrowingFiles(ReadOptions):
    """Options of reading files that others append to."""

    whole_lines: ClassVar[bool] = True


NO_OPTIONS: Final = ReadOptions()


class Spelling(NamedTuple):
    """How one way in, such as HTTP, writes these options.

    Attributes:
        column: One of ``columns``, with ``{}`` for our name.
        fields: The options that errors name, by their fields.
    """

    ffill: str
    drop: str
    drop_bad_rows: str
    column: str
    fields: Mapping[str, str]

    def with_remedy(self, error: KronosError) -> str:
        """The message of an error about a file, with the option that helps."""
        if isinstance(error, NoPrices):
            return (
                f"{error.message}; {self.ffill} gives such rows the close before, {self.drop} leaves them out"
            )
        if isinstance(error, BadRow):
            return f"{error.message}; {self.drop_bad_rows} leaves such rows out"
        if error.field is not None and error.field in self.fields:
            return f"{error.message} ({self.fields[error.field]})"
        if error.field in MAPPED and not error.details:
            return f"{error.message}, or name the column: {self.column.format(error.field)}"
        return error.message
