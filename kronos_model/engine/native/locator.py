"""The folder of the compiled kernels, as Numba asks for it."""

from typing import Any

from numba.core import config
from numba.core.caching import UserProvidedCacheLocator


class KernelFolder(UserProvidedCacheLocator):
    """The folder ``numba.config.CACHE_DIR`` itself.

    Numba's own locators refuse a folder that this process cannot write, such as one in an image.
    """

    def __init__(self, py_func: Any, py_file: str) -> None:
        super().__init__(py_func, py_file)
        self._cache_path = config.CACHE_DIR

    def ensure_cache_path(self) -> None:
        """Nothing: the folder exists."""
