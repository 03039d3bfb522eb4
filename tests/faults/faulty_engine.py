"""Imported into a worker under test (``--include``): an engine that fails as the files of a folder ask for.

``FAULTY_ENGINE`` names the folder. A file there asks for a fault; what happens once removes it.

hang: the next step of one engine never ends.
die: the next step of one engine raises. With ``HANGING_SHUTDOWN`` in the environment the jobs of that engine
never come back from their wait, so that a warm shutdown waits for them for ever.
lose-device: a kernel of one decode step fails in such a way that the device computes nothing more.
out-of-memory: JSON, by phase (``decode`` or a chunk's): seeds whose work fails for want of memory.
"""

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from kronos_model.engine.engine import Engine
from kronos_model.engine.runner import ModelRunner
from kronos_model.engine.scheduling.path_table import Batch
from kronos_model.engine.sequence import Sequence
from worker.inference import forced_shutdown
from worker.inference.engine_thread import EngineThread

FOLDER = Path(os.environ["FAULTY_ENGINE"])

step, compute, decode = Engine.step, ModelRunner.compute, ModelRunner.decode


def is_asked_for(fault: str) -> bool:
    """Take the file as the first process; it then holds the process id."""
    try:
        (FOLDER / fault).rename(FOLDER / f"{fault}-{os.getpid()}")
    except FileNotFoundError:
        return False
    return True


def step_or_fail(engine: Engine) -> Any:
    while is_asked_for("hang"):
        time.sleep(3600)
    if is_asked_for("die"):
        raise RuntimeError("an engine that dies, as the test asked for")
    return step(engine)


def fail(phase: str, sequences: Iterable[Sequence]) -> None:
    """Fail as an allocator does, if the phase should fail for one of the seeds."""
    try:
        seeds = json.loads((FOLDER / "out-of-memory").read_text())
    except FileNotFoundError:
        return
    if any(sequence.request.sampling.seed in seeds.get(phase, []) for sequence in sequences):
        with (FOLDER / "failed").open("a") as file:
            file.write(f"{phase}\n")
        if phase == "decode":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory")


def lose_device(device: str) -> None:
    """On a GPU by a failed assertion in a kernel, else by saying so."""
    if device == "cpu":
        ModelRunner.is_lost = lambda _: True  # type: ignore[method-assign]
        raise RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`")
    torch.zeros(1, device=device)[torch.ones(1, dtype=torch.int64, device=device)].item()


def compute_or_fail(runner: ModelRunner, chunks: Any) -> None:
    for chunk in chunks:
        fail(chunk.phase.name, [chunk.sequence])
    compute(runner, chunks)


def decode_or_fail(runner: ModelRunner, batch: Batch) -> None:
    fail("decode", batch.sequences)
    if is_asked_for("lose-device"):
        lose_device(os.environ.get("KRONOS_DEVICE", "cpu"))
    decode(runner, batch)


Engine.step = step_or_fail  # type: ignore[method-assign]
ModelRunner.compute = compute_or_fail  # type: ignore[method-assign]
ModelRunner.decode = decode_or_fail  # type: ignore[method-assign]

if "HANGING_SHUTDOWN" in os.environ:
    forced_shutdown.ENDING_GRACE_S = 1.0  # type: ignore[misc]
    EngineThread.has_ended = lambda *_: time.sleep(3600)  # type: ignore[assignment, method-assign, func-returns-value]
