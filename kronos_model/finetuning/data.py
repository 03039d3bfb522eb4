"""Reading the candles of a config."""

from kronos_model.bars.files.instruments import read_instruments
from kronos_model.bars.files.report import DataReport
from kronos_model.bars.instrument import Instrument
from kronos_model.errors import CandleFileError, TrainingDataError
from kronos_model.finetuning.config import DataConfig


def read_training_candles(config: DataConfig) -> tuple[list[Instrument], DataReport]:
    """The instruments of ``config.path``, and a report; see ``read_instruments``.

    Raises TrainingDataError for the errors of ``read_instruments``; ``field`` is a field of the config.
    """
    names: dict[str, str] = {str(name): title for name, title in config.columns.items()}
    if config.instrument_column is not None:
        names["instrument"] = config.instrument_column
    try:
        return read_instruments(config.paths, names)
    except CandleFileError as error:
        message = error.message
        field = {None: "data.path", "instrument": "data.instrument_column"}.get(error.field)
        if field is None:
            field = f"data.columns.{error.field}"
            message += f", or name the column in {field}"
        raise TrainingDataError(message, field=field, details=error.details) from None
