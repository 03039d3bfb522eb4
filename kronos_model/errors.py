"""The errors of this package, all below ``KronosError``.

    KronosError                  INTERNAL
    ├── InputError               INVALID_INPUT            a request that cannot be computed
    │   ├── CandleFileError      INVALID_INPUT            a file without readable candles
    │   │   └── BadRow           INVALID_INPUT            a file with an unusable row
    │   │       ├── NoPrices     INVALID_INPUT            one without prices
    │   │       └── RepeatedTime INVALID_INPUT            one with the time of an earlier row
    │   ├── CandleError          (one code a defect)      a defect in the candles, with its column and row
    │   └── TimestampError       (one code a defect)      a defect in the timestamps, with its row
    ├── PackageMissing           NOT_INSTALLED            an optional package that the request needs
    ├── DeviceError              INVALID_DEVICE           an unknown device name
    ├── CheckpointError          CHECKPOINT_INVALID       an unusable checkpoint
    │   ├── CheckpointMissing    CHECKPOINT_MISSING       a missing folder, file or tensor
    │   ├── CheckpointUnreachable CHECKPOINT_UNREACHABLE  not cached, and the hub does not answer
    │   └── CheckpointMismatch   CHECKPOINT_MISMATCH      model and tokenizer that do not fit each other
    ├── CompilationFailed                                 kernels that could not be compiled
    ├── OutOfMemory              OUT_OF_MEMORY            the device has too little memory
    ├── DeviceLost                                        the device failed, and computes nothing more
    │   └── PeerLost                                      another process of the same training ended
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

OUT_OF_MEMORY_TEXTS = (
    "out of memory",  # CUDA and MPS, the allocator's and the driver's
    "can't allocate memory",  # the CPU's allocator
    "alloc_failed",  # cuBLAS and cuDNN
    "bad_alloc",
)


class KronosError(Exception):
    """Base of all errors raised on purpose by this package."""

    code = "INTERNAL"

    def __init_subclass__(cls, code: str | None = None) -> None:
        if code is not None:
            cls.code = code

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


class InputError(KronosError, ValueError, code="INVALID_INPUT"):
    """A request that cannot be computed; also a ``ValueError``, as in the reference."""


class CandleFileError(InputError):
    """A file without readable candles.

    ``field`` is the column at fault: the file's title for a single bad cell, else our name. ``details`` has
    the ``line`` in a CSV file, from 1, or the ``row`` in a Parquet file, from 0.
    """


class BadRow(CandleFileError):
    """An unusable row of a file, which the option to drop such rows leaves out."""


class NoPrices(BadRow):
    """A row whose prices are blank, or zero without volume, which the option ``missing`` accepts."""


class RepeatedTime(BadRow):
    """A row with the time of an earlier one of its instrument."""


class CandleError(InputError):
    """A defect in the candles: ``field`` is the column, ``details["row"]`` the first row at fault."""


class TimestampError(InputError):
    """A defect in the timestamps: ``details["row"]`` is the first row at fault."""


class PackageMissing(KronosError, code="NOT_INSTALLED"):
    """An optional package that the request needs; the message names the extra to install."""


class DeviceError(KronosError, ValueError, code="INVALID_DEVICE"):
    """An unknown device name: not auto, cpu, cuda, cuda:N or mps."""


class CheckpointError(KronosError, code="CHECKPOINT_INVALID"):
    """An unusable checkpoint."""


class CheckpointMissing(CheckpointError, code="CHECKPOINT_MISSING"):
    """A missing folder, repository, revision, file or tensor."""


class CheckpointUnreachable(CheckpointError, code="CHECKPOINT_UNREACHABLE"):
    """A checkpoint that is not cached, while the hub does not answer."""


class CheckpointMismatch(CheckpointError, code="CHECKPOINT_MISMATCH"):
    """Model and tokenizer that do not fit each other."""


class CompilationFailed(KronosError):
    """Kernels could not be compiled; the message has the end of what the compiler printed."""


class OutOfMemory(KronosError, code="OUT_OF_MEMORY"):
    """The device has too little memory."""


class DeviceLost(KronosError):
    """The device failed, and computes nothing more in this process. A new process may go on."""


class PeerLost(DeviceLost):
    """Another process of the same training ended, or does not answer. New processes may go on."""


class ForecastStopped(KronosError):
    """A forecast that was stopped before it was done."""


class Cancelled(ForecastStopped, code="CANCELLED"):
    """The forecast was cancelled."""


class DeadlineExceeded(ForecastStopped, code="DEADLINE"):
    """The forecast did not finish before its deadline."""


class FinetuningError(KronosError):
    """A finetuning run that cannot start or continue."""


class FinetuningConfigError(FinetuningError, ValueError, code="INVALID_CONFIG"):
    """An unusable config; ``field`` is the dotted path at fault."""


class TrainingDataError(FinetuningError, code="TRAINING_DATA_INVALID"):
    """Files without usable candles, or with too few bars for the configured windows."""


class TrainingDiverged(FinetuningError, code="TRAINING_DIVERGED"):
    """A loss that is not finite. The best checkpoint so far is kept."""


class DiskFull(FinetuningError, code="DISK_FULL"):
    """Too little room, or no permission, to save the results of training."""


class RunLocked(FinetuningError, code="RUN_LOCKED"):
    """Another process trains in the same folder."""


class TrainingStopped(FinetuningError, code="TRAINING_STOPPED"):
    """Training stopped on request and saved its state; it can be resumed."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether computing less at once may help."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(part in text for part in OUT_OF_MEMORY_TEXTS)
