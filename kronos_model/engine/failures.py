"""The error that a failed series ends with. No torch."""

from kronos_model.devices.failures import is_out_of_memory
from kronos_model.errors import KronosError, OutOfMemory


def as_kronos_error(error: Exception) -> KronosError:
    """The error that a failed series ends with."""
    if isinstance(error, KronosError):
        return error
    if is_out_of_memory(error):
        return OutOfMemory("the device has too little memory for this series; ask for fewer paths or bars")
    wrapped = KronosError(f"the model failed on this series ({type(error).__name__}); see the worker's log")
    wrapped.__cause__ = error.with_traceback(None)  # its frames hold tensors, and it has been logged
    return wrapped
