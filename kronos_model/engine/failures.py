"""What a failed computation means, from the name of its class and its text. No torch."""

from kronos_model.errors import KronosError, OutOfMemory

OUT_OF_MEMORY_TEXTS = (
    "out of memory",  # CUDA and MPS, the allocator's and the driver's
    "can't allocate memory",  # the CPU's allocator
    "alloc_failed",  # cuBLAS and cuDNN
    "bad_alloc",
)


def is_out_of_memory(error: Exception) -> bool:
    """Whether computing less at once may help."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(part in text for part in OUT_OF_MEMORY_TEXTS)


def is_device_lost(error: Exception) -> bool:
    """Whether every further call would fail the same way, as after an illegal access on a GPU."""
    return type(error).__name__ == "AcceleratorError" and not is_out_of_memory(error)


def as_kronos_error(error: Exception) -> KronosError:
    """The error that a failed series ends with."""
    if isinstance(error, KronosError):
        return error
    if is_out_of_memory(error):
        return OutOfMemory("the device has too little memory for this series; ask for fewer paths or bars")
    wrapped = KronosError(f"the model failed on this series ({type(error).__name__}); see the worker's log")
    wrapped.__cause__ = error
    return wrapped
