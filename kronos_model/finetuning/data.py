"""Reading the candles of a config."""

from kronos_model.bars.columns import COLUMNS
from kronos_model.bars.files.instruments import read_instruments
from kronos_model.bars.files.options import TIMES, ReadOptions
from kronos_model.bars.files.report import DataReport
from kronos_model.bars.instrument import Instrument
from kronos_model.errors import BadRow, CandleFileError, TrainingDataError
from kronos_model.finetuning.data_config import DataConfig


def read_training_candles(config: DataConfig) -> tuple[list[Instrument], DataReport]:
    """The instruments of ``config.path``, and a report; see ``read_instruments``.

    Raises TrainingDataError for the errors of ``read_instruments``; ``field`` is a field of the config.
    """
    options = ReadOptions(
        columns={str(name): title for name, title in config.columns.items()},
        id_column=config.id_column,
        date_format=config.date_format,
        decimal=config.decimal,
        drop_bad_rows=config.drop_bad_rows,
        reject_impossible=config.reject_impossible,
    )
    try:
        return read_instruments(config.paths, options)
    except CandleFileError as error:
        message, field = error.message, "data.path"
        if isinstance(error, BadRow):
            field = "data.drop_bad_rows"
            message += f"; {field} leaves such rows out"
        elif error.field in (TIMES, *COLUMNS):
            field = f"data.columns.{error.field}"
            message += f", or name the column in {field}"
        elif error.field is not None:
            field = {"instrument": "data.id_column"}.get(error.field, f"data.{error.field}")
            message += f" ({field})"
        raise TrainingDataError(message, field=field, details=error.details) from None
