"""Reading the candles that a config or a job names."""

from collections.abc import Sequence

from kronos_model.bars.columns import COLUMNS
from kronos_model.bars.files.instruments import read_instruments
from kronos_model.bars.files.options import TIMES, ReadOptions
from kronos_model.bars.files.report import DataReport
from kronos_model.bars.instrument import Instrument
from kronos_model.errors import BadRow, CandleFileError, NoPrices, TrainingDataError
from kronos_model.finetuning.data_config import DataConfig, ReadConfig


def read_training_candles(config: DataConfig) -> tuple[list[Instrument], DataReport]:
    """The instruments of ``config.path``, and a report. Raises as ``read_files``."""
    return read_files(config.paths, config, "data.")


def read_files(paths: Sequence[str], config: ReadConfig, prefix: str) -> tuple[list[Instrument], DataReport]:
    """The instruments of these files and folders, and a report; see ``read_instruments``.

    Raises TrainingDataError for the errors of ``read_instruments``; ``field`` is ``data.path``, or one of
    ``config`` after ``prefix``.
    """
    options = ReadOptions(
        columns={str(name): title for name, title in config.columns.items()},
        id_column=config.id_column,
        date_format=config.date_format,
        decimal=config.decimal,
        missing=config.missing,
        drop_bad_rows=config.drop_bad_rows,
        reject_impossible=config.reject_impossible,
    )
    try:
        return read_instruments(paths, options)
    except CandleFileError as error:
        message, field = error.message, "data.path"
        if isinstance(error, NoPrices):
            field = f"{prefix}missing"
            message += f"; {field} fills such rows (ffill) or leaves them out (drop)"
        elif isinstance(error, BadRow):
            field = f"{prefix}drop_bad_rows"
            message += f"; {field} leaves such rows out"
        elif error.field in (TIMES, *COLUMNS):
            field = f"{prefix}columns.{error.field}"
            message += f", or name the column in {field}"
        elif error.field is not None:
            field = prefix + {"instrument": "id_column"}.get(error.field, error.field)
            message += f" ({field})"
        raise TrainingDataError(message, field=field, details=error.details) from None
