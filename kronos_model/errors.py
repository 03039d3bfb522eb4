"""The errors of this package, all below ``KronosError``.

    KronosError                  INTERNAL
    ├── InputError               INVALID_INPUT            what was asked for cannot be computed
    │   ├── CandleFileError      INVALID_INPUT            a file that candles cannot be read from
    │   ├── CandleError          (one code a defect)      a defect in the candles, with its column and row
    │   └── TimestampError       (one code a defect)      a defect in the timestamps, with its row
    ├── DeviceError              INVALID_DEVICE           a device name nobody knows
    ├── CheckpointError          CHECKPOINT_INVALID       a checkpoint that is there but cannot be used
    │   ├── CheckpointMissing    CHECKPOINT_MISSING       a folder, file or tensor that is not there
    │   ├── CheckpointUnreachable CHECKPOINT_UNREACHABLE  not cached, and the hub does not answer
    │   └── CheckpointMismatch   CHECKPOINT_MISMATCH      model and tokenizer that do not fit each other
    ├── OutOfMemory              OUT_OF_MEMORY            the device cannot hold what was asked for
    ├── ForecastStopped                                   a forecast that was ended from outside
    │   ├── Cancelled            CANCELLED
    │   └── DeadlineExceeded     DEADLINE
    └── FinetuningError                                   a finetuning run that cannot start or go on
        ├── FinetuningConfigError INVALID_CONFIG          a field of its config that cannot be used
        ├── TrainingDataError    TRAINING_DATA_INVALID    files without usable candles, or too few
        ├── TrainingDiverged     TRAINING_DIVERGED        a loss that is not finite
        ├── DiskFull             DISK_FULL                no room, or no permission, to save
        ├── RunLocked            RUN_LOCKED               another process trains in the same folder
        └── TrainingStopped      TRAINING_STOPPED         asked to stop; its state is saved

Every error carries a ``code`` for machines, a message that says what to do, and, where it applies, the
``field`` at fault and ``details`` (JSON-compatible).
"""

from collections.abc import Mapping
from typing import Any


class KronosError(Exception):
    """Base of all errors raised on purpose by this package."""

    code = "INTERNAL"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        field: str | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.details = dict(details or {})
        if code is not None:
            self.code = code


class InputError(KronosError, ValueError):
    """What was asked for cannot be computed; also a ``ValueError``, which the reference raises."""

    code = "INVALID_INPUT"


class CandleFileError(InputError):
    """A file that candles cannot be read from.

    ``field`` is the column at fault: as the file calls it if one cell is at fault, else by our name.
    ``details`` has the ``line`` in a CSV file, from 1, or the ``row`` in a Parquet file, from 0.
    """


class CandleError(InputError):
    """A defect in the candles: ``field`` is the column, ``details["row"]`` the first row at fault."""


class TimestampError(InputError):
    """A defect in the timestamps: ``details["row"]`` is the first row at fault."""


class DeviceError(KronosError, ValueError):
    """A device name that is none of auto, cpu, cuda, cuda:N, mps."""

    code = "INVALID_DEVICE"


class CheckpointError(KronosError):
    """A checkpoint that is there but cannot be used."""

    code = "CHECKPOINT_INVALID"


class CheckpointMissing(CheckpointError):
    """A folder, repository, revision, file or tensor that is not there."""

    code = "CHECKPOINT_MISSING"


class CheckpointUnreachable(CheckpointError):
    """Neither cached nor to be had: the hub does not answer."""

    code = "CHECKPOINT_UNREACHABLE"


class CheckpointMismatch(CheckpointError):
    """Model and tokenizer that do not fit each other."""

    code = "CHECKPOINT_MISMATCH"


class OutOfMemory(KronosError):
    """The device has too little memory for what was asked."""

    code = "OUT_OF_MEMORY"


class ForecastStopped(KronosError):
    """A forecast that was ended from outside before it was done."""


class Cancelled(ForecastStopped):
    """The forecast was cancelled."""

    code = "CANCELLED"


class DeadlineExceeded(ForecastStopped):
    """The forecast did not finish before its deadline."""

    code = "DEADLINE"


class FinetuningError(KronosError):
    """A finetuning run that cannot start or go on."""


class FinetuningConfigError(FinetuningError, ValueError):
    """A config that cannot be used; ``field`` is the dotted path at fault."""

    code = "INVALID_CONFIG"


class TrainingDataError(FinetuningError):
    """Files without usable candles, or too few bars for the windows asked for."""

    code = "TRAINING_DATA_INVALID"


class TrainingDiverged(FinetuningError):
    """A loss that is not finite. The best checkpoint so far is kept."""

    code = "TRAINING_DIVERGED"


class DiskFull(FinetuningError):
    """Too little room, or no permission, to save what training makes."""

    code = "DISK_FULL"


class RunLocked(FinetuningError):
    """Another process trains in the same folder."""

    code = "RUN_LOCKED"


class TrainingStopped(FinetuningError):
    """Training was asked to stop and saved its state; it may be resumed."""

    code = "TRAINING_STOPPED"
