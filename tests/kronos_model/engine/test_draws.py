"""The kernel that draws a token: by Triton's interpreter, which runs it on the CPU, and by its compiler."""

import importlib.util
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from kronos_model.engine.draws import check_draw, draw, draw_on

CPU = torch.device("cpu")

with_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="no Triton: pip install -r requirements-dev.txt"
)


def run(command: str, tmp_path, **variables: str) -> None:
    """Run Python in a process of its own: Triton reads its variables when it is imported."""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run(
        [sys.executable, "-c", command], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


CHECK = """
import torch
from kronos_model.engine import draw_kernel, draws
draws.check_draw(draw_kernel.draw, torch.device("cpu"), vocabulary=32)
"""

COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from kronos_model.engine.draw_kernel import draw_row
signature = dict.fromkeys(("top_k_ptr", "seed_ptr", "path_ptr", "step_ptr", "token_ptr"), "*i64")
signature |= {"temperature_ptr": "*fp32", "top_p_ptr": "*fp32", "number": "i32", "vocabulary": "constexpr"}
for logits in ("*fp32", "*bf16"):
    source = ASTSource(draw_row, {"logits_ptr": logits, **signature}, {"vocabulary": 1024})
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32))
    assert compiled.asm["cubin"]
"""


@with_triton
def test_the_kernel_draws_what_pytorchs_operations_draw(tmp_path):
    run(CHECK, tmp_path, TRITON_INTERPRET="1")


@with_triton
def test_the_kernel_compiles_for_an_h100(tmp_path):
    run(COMPILE, tmp_path)


def test_without_triton_pytorchs_operations_draw(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "kronos_model.engine.draw_kernel", None)
    assert draw_on(torch.device("cuda")) is draw
    assert "80 operations" in caplog.text
    assert draw_on(CPU) is draw


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


@pytest.mark.gpu
def test_a_gpu_draws_by_the_kernel():
    assert draw_on(torch.device("cuda")) is not draw
