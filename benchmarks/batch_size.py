"""How many bars per second does a device generate, by the number of paths in a step?

Random weights of a published shape; series of one path each, 400 bars of lookback, 100 bars ahead. Columns:
the engine's decode step, the naive loop's step on the same batch if it is small enough, and the bytes and
operations that a step needs at least, for the weights once and for the keys and values of every path.

    python -m benchmarks.batch_size [--device cuda] [--shape small] [--dtype bfloat16] [--sizes 1 8 64 256]
"""

import argparse
import statistics
import time

import torch

from benchmarks.decode import HORIZON, LOOKBACK, MAX_CONTEXT, multiplied_bytes
from benchmarks.support.naive import NaiveForecaster
from benchmarks.support.shapes import random_pair
from benchmarks.support.workload import series_request
from kronos_model.engine.build import build_engine
from kronos_model.engine.engine import Engine
from kronos_model.engine.generation import SamplingParams, SeriesRequest
from kronos_model.model import Kronos
from kronos_model.tokenizer import KronosTokenizer


def wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def step_s(engine: Engine, requests: list[SeriesRequest], device: torch.device) -> float:
    """Seconds per decode step, over the steps in which all series decode."""
    for request in requests:
        engine.submit(request)
    while engine.last_step.num_bars < len(requests):  # until all lookbacks are read
        engine.step()
    wait_for(device)
    num_steps, start = 0, time.perf_counter()
    while True:
        engine.step()
        if engine.last_step.num_bars < len(requests):
            break
        num_steps += 1
    wait_for(device)
    seconds = (time.perf_counter() - start) / max(1, num_steps)
    while engine.has_work:
        engine.step()
    return seconds


def naive_step_s(
    model: Kronos, tokenizer: KronosTokenizer, requests: list[SeriesRequest], device: torch.device
) -> float:
    """Seconds of one step in the middle of the horizon, on the whole batch."""
    forecaster = NaiveForecaster(model.cpu(), tokenizer.cpu(), requests, MAX_CONTEXT)
    middle = forecaster.tokens[..., -1:].repeat(1, 1, HORIZON // 2)
    tokens = torch.cat((forecaster.tokens, middle), dim=-1).to(device)
    stamps = forecaster.stamps[:, : tokens.shape[-1]].to(device)
    model.to(device)
    tokenizer.to(device)
    seconds = []
    for _ in range(3):
        wait_for(device)
        start = time.perf_counter()
        with torch.inference_mode():
            s1_logits, context = model.decode_s1(tokens[0], tokens[1], stamps)
            model.decode_s2(context, s1_logits[:, -1].argmax(-1, keepdim=True))
        wait_for(device)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--shape", default="small")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--max-naive", type=int, default=64, help="largest batch for the naive loop")
    arguments = parser.parse_args()

    device, dtype = torch.device(arguments.device), getattr(torch, arguments.dtype)
    model, tokenizer = (module.to(device) for module in random_pair(arguments.shape))
    engine = build_engine(
        model, tokenizer, max_context=MAX_CONTEXT, max_slots=max(arguments.sizes), dtype=dtype
    )
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print(f"torch {torch.__version__}, {name}, shape {arguments.shape}, {arguments.dtype}")
    weights = multiplied_bytes(model) // 4
    layers = len(model.transformer) + 1
    print(f"{'paths':>6} {'step ms':>8} {'bars/s':>9} {'naive':>8} {'times':>7} {'MB/step':>10} {'GFLOP':>7}")
    for size in arguments.sizes:
        requests = [
            series_request(seed % 64, LOOKBACK, HORIZON, SamplingParams(seed=seed)) for seed in range(size)
        ]
        step_s(engine, requests, device)  # warm up
        step = statistics.median(step_s(engine, requests, device) for _ in range(arguments.runs))
        naive = naive_step_s(model, tokenizer, requests, device) if size <= arguments.max_naive else None
        per_path = 2 * layers * (LOOKBACK + HORIZON // 2) * model.d_model  # keys and values
        itemsize = 4 if device.type == "cpu" else dtype.itemsize
        megabytes = (weights * dtype.itemsize + size * per_path * itemsize) / 1e6
        gigaflop = size * 2 * (weights + per_path) / 1e9
        naive_columns = f"{size / naive:>8.0f} {naive / step:>7.1f}" if naive else f"{'':>8} {'':>7}"
        print(
            f"{size:>6} {step * 1000:>8.2f} {size / step:>9.0f} {naive_columns} {megabytes:>10.1f} "
            f"{gigaflop:>7.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
