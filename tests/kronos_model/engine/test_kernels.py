"""The kernels of a step: by Triton's interpreter, which runs them on the CPU, and by its compiler."""

import importlib.util
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kronos_model.engine.decoding.sampling import check_draw, draw
from kronos_model.engine.decoding.static_steps import check_read, kernels_on, read_by_row

CPU = torch.device("cpu")

with_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="no Triton: pip install -r requirements-dev.txt"
)


def run(command: str, **variables: str) -> None:
    """Run Python in a process of its own: Triton reads its variables when it is imported.

    What it compiled serves all runs of a source, as the kernels of the native engine do.
    """
    folder = Path(tempfile.gettempdir(), f"kronos-triton-{os.getuid()}")
    environment = {**os.environ, "TRITON_CACHE_DIR": str(folder), "OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run(
        [sys.executable, "-c", command], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


CHECK_DRAW = """
import torch
from kronos_model.engine.decoding import sampling, triton_kernels
sampling.check_draw(triton_kernels.draw, torch.device("cpu"), vocabulary=32)
"""

CHECK_READ = """
import torch
from kronos_model.engine.decoding import static_steps, triton_kernels
static_steps.check_read(triton_kernels.read, torch.device("cpu"))
"""

COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

def compile(kernel, types, **constants):
    signature = {name: next(types[key] for key in types if name.endswith(key)) for name in kernel.arg_names
                 if name not in constants} | dict.fromkeys(constants, "constexpr")
    source = ASTSource(kernel, signature, constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32))
    assert compiled.asm["cubin"]
    assert ".local" not in compiled.asm["ptx"]  # nothing that should be in registers is in memory
"""

COMPILE_DRAW = """
from kronos_model.engine.decoding.triton_kernels import draw_row
for logits in ("*fp32", "*bf16"):
    types = {"logits_ptr": logits, "temperature_ptr": "*fp32", "top_p_ptr": "*fp32", "ptr": "*i64", "": "i32"}
    compile(draw_row, types, vocabulary=1024)
"""

COMPILE_READ = """
from kronos_model.engine.decoding.triton_kernels import BLOCK_BARS, read_row
for cached in ("*fp32", "*bf16"):
    tensors = dict.fromkeys(("q_ptr", "k_ptr", "v_ptr", "out_ptr"), cached)
    for head_dim in (56, 64):
        types = {**tensors, "ptr": "*i64", "scale": "fp32", "": "i32"}
        compile(read_row, types, head_dim=head_dim, width=64, block=BLOCK_BARS)
"""


@with_triton
def test_kernels_compute_what_pytorchs_operations_do():
    run(CHECK_DRAW + CHECK_READ, TRITON_INTERPRET="1")


@with_triton
def test_kernels_compile_for_an_h100():
    run(COMPILE + COMPILE_DRAW + COMPILE_READ)


def test_without_triton_there_are_no_kernels(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "kronos_model.engine.decoding.triton_kernels", None)
    assert kernels_on(torch.device("cuda")) is None
    assert "more operations" in caplog.text
    assert kernels_on(CPU) is None


@pytest.mark.parametrize("wrong", ["path", "top_p", "number"])
def test_a_kernel_that_draws_otherwise_is_refused(wrong):
    def other(logits, params, seed, path, step, number):
        if wrong == "path":
            path = path + 1
        elif wrong == "number":
            number = 1 - number
        else:
            params = replace(params, top_p=torch.ones_like(params.top_p))
        return draw(logits, params, seed, path, step, number)

    check_draw(draw, CPU)
    with pytest.raises(RuntimeError, match="other tokens"):
        check_draw(other, CPU)


NAMES = ["seen", "prompt_slot", "first", "last"]


@pytest.mark.parametrize("wrong", NAMES)
def test_a_kernel_that_reads_other_bars_is_refused(wrong):
    def other(q, k, v, *spans):
        others = [span - int(name == wrong) for name, span in zip(NAMES, spans, strict=True)]
        return read_by_row(q, k, v, *others)

    check_read(read_by_row, CPU)
    with pytest.raises(RuntimeError, match="something else"):
        check_read(other, CPU)


@pytest.mark.gpu
def test_a_gpu_runs_the_kernels():
    assert kernels_on(torch.device("cuda")) is not None
