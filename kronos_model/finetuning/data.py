"""Reading the candles that a config or a job names."""

from collections.abc import Sequence
from dataclasses import fields

from kronos_model.bars.columns import Instrument
from kronos_model.bars.files.instruments import read_instruments
from kronos_model.bars.files.options import MAPPED, ReadOptions
from kronos_model.bars.files.report import DataReport
from kronos_model.errors import BadRow, CandleFileError, NoPrices, TrainingDataError
from kronos_model.finetuning.config_parts import ReadConfig


def read_files(paths: Sequence[str], config: ReadConfig, prefix: str) -> tuple[list[Instrument], DataReport]:
    """The instruments of these files and folders, and a report; see ``read_instruments``.

    Raises TrainingDataError for the errors of ``read_instruments``; ``field`` is ``data.path``, or one of
    ``config`` after ``prefix``.
    """
    options = {option.name: getattr(config, option.name) for option in fields(ReadOptions)}
    try:
        return read_instruments(paths, ReadOptions(**options))
    except CandleFileError as error:
        message, field = error.message, "data.path"
        if isinstance(error, NoPrices):
            field = f"{prefix}missing"
            message += f"; {field} fills such rows (ffill) or leaves them out (drop)"
        elif isinstance(error, BadRow):
            field = f"{prefix}drop_bad_rows"
            message += f"; {field} leaves such rows out"
        elif error.field in MAPPED:
            field = f"{prefix}columns.{error.field}"
            message += f", or name the column in {field}"
        elif error.field is not None:
            field = prefix + {"instrument": "id_column"}.get(error.field, error.field)
            message += f" ({field})"
        raise TrainingDataError(message, field=field, details=error.details) from None
