"""The errors of this package, all below ``KronosError``.

    KronosError                  INTERNAL
    ├── InputError               INVALID_INPUT            a request that cannot be computed
    │   ├── CandleFileError      INVALID_INPUT            a file without readable candles
    │   ├── CandleError          (one code a defect)      a defect in the candles, with its column and row
    │   └── TimestampError       (one code a defect)      a defect in the timestamps, with its row
    ├── DeviceError              INVALID_DEVICE           an unknown device name
    ├── CheckpointError          CHECKPOINT_INVALID       an unusable checkpoint
    │   ├── CheckpointMissing    CHECKPOINT_MISSING       a missing folder, file or tensor
    │   ├── CheckpointUnreachable CHECKPOINT_UNREACHABLE  not cached, and the hub does not answer
    │   └── CheckpointMismatch   CHECKPOINT_MISMATCH      model and tokenizer that do not fit each other
    ├── OutOfMemory              OUT_OF_MEMORY            the device has too little memory
    ├── ForecastStopped                                   a forecast that was stopped
    │   ├── Cancelled            CANCELLED
    │   └── DeadlineExceeded     DEADLINE
    └── FinetuningError                                   a finetuning run that cannot start or continue
        ├── FinetuningConfigError INVALID_CONFIG          an unusable field of its config
        ├── TrainingDataError    TRAINING_DATA_INVALID    files without usable candles, or too few
        ├── TrainingDiverged     TRAINING_DIVERGED        a loss that is not finite
        ├── DiskFull             DISK_FULL                no room, or no permission, to save
        ├── RunLocked            RUN_LOCKED               another process trains in the same folder
        └── TrainingStopped      TRAINING_STOPPED         stopped on request; its state is saved

Every error has a ``code`` for machines and a message with the cause and the remedy. Some have the ``field``
at fault and ``details`` (JSON-compatible).
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
    """A request that cannot be computed; also a ``ValueError``, as in the reference."""

    code = "INVALID_INPUT"


class CandleFileError(InputError):
    """A file without readable candles.

    ``field`` is the column at fault: the file's title for a single bad cell, else our name. ``details`` has
    the ``line`` in a CSV file, from 1, or the ``row`` in a Parquet file, from 0.
    """


class CandleError(InputError):
    """A defect in the candles: ``field`` is the column, ``details["row"]`` the first row at fault."""


class TimestampError(InputError):
    """A defect in the timestamps: ``details["row"]`` is the first row at fault."""


class DeviceError(KronosError, ValueError):
    """An unknown device name: not auto, cpu, cuda, cuda:N or mps."""

    code = "INVALID_DEVICE"


class CheckpointError(KronosError):
    """An unusable checkpoint."""

    code = "CHECKPOINT_INVALID"


class CheckpointMissing(CheckpointError):
    """A missing folder, repository, revision, file or tensor."""

    code = "CHECKPOINT_MISSING"


class CheckpointUnreachable(CheckpointError):
    """A checkpoint that is not cached, while the hub does not answer."""

    code = "CHECKPOINT_UNREACHABLE"


class CheckpointMismatch(CheckpointError):
    """Model and tokenizer that do not fit each other."""

    code = "CHECKPOINT_MISMATCH"


class OutOfMemory(KronosError):
    """The device has too little memory."""

    code = "OUT_OF_MEMORY"


class ForecastStopped(KronosError):
    """A forecast that was stopped before it was done."""


class Cancelled(ForecastStopped):
    """The forecast was cancelled."""

    code = "CANCELLED"


class DeadlineExceeded(ForecastStopped):
    """The forecast did not finish before its deadline."""

    code = "DEADLINE"


class FinetuningError(KronosError):
    """A finetuning run that cannot start or continue."""


class FinetuningConfigError(FinetuningError, ValueError):
    """An unusable config; ``field`` is the dotted path at fault."""

    code = "INVALID_CONFIG"


class TrainingDataError(FinetuningError):
    """Files without usable candles, or with too few bars for the configured windows."""

    code = "TRAINING_DATA_INVALID"


class TrainingDiverged(FinetuningError):
    """A loss that is not finite. The best checkpoint so far is kept."""

    code = "TRAINING_DIVERGED"


class DiskFull(FinetuningError):
    """Too little room, or no permission, to save the results of training."""

    code = "DISK_FULL"


class RunLocked(FinetuningError):
    """Another process trains in the same folder."""

    code = "RUN_LOCKED"


class TrainingStopped(FinetuningError):
    """Training stopped on request and saved its state; it can be resumed."""

    code = "TRAINING_STOPPED"
