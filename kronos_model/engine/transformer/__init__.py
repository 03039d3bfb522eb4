"""The model as the engine runs it: layers, attention, and keys and values in slots.

MKL's products may depend on where in memory the numbers lie, and so on the thread that computes them: they do
on AMD's CPUs. Its own switch against that is the variable ``MKL_CBWR`` ("conditional numerical
reproducibility"), which it reads before its first product. With AMX, they do not depend on it.
"""

import os

import torch

if not torch.cpu.get_capabilities().get("amx_bf16", False):
    os.environ.setdefault("MKL_CBWR", "AUTO")
