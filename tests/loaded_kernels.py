"""Imported, it loads the kernels of the native engine, if they are compiled."""

from kronos_model.engine.native.compiling import is_warm, ready_kernels
from tests.fork_server import KERNELS

if is_warm(KERNELS):
    ready_kernels(KERNELS, print)
