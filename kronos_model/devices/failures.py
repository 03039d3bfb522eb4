"""What a failed computation means, from the name of its class and its text. No torch."""

OUT_OF_MEMORY_TEXTS = (
    "out of memory",  # CUDA and MPS, the allocator's and the driver's
    "can't allocate memory",  # the CPU's allocator
    "alloc_failed",  # cuBLAS and cuDNN
    "bad_alloc",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether computing less at once may help."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(part in text for part in OUT_OF_MEMORY_TEXTS)
