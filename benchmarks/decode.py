"""How much faster is the engine than recomputing everything for each bar, by series and paths?

Random weights of a published shape, 400 bars of lookback, 100 bars ahead. The case 4x10 is 4 series with 10
paths each. The naive loop, in float32, is timed on a few steps across the horizon and scaled to all steps;
several series are one batch. The engine is timed as a whole, from submission to bars; its step is the mean
of those in which all paths decode. The engines' runs alternate. The last lines compare a step of one path
with the time to read its weights once, at the memory bandwidth of the same run, and prefill with the rate of
a large product.

    python -m benchmarks.decode [--cases 1x1 1x10 1x64 64x1] [--dtypes float32 bfloat16] [--runs 5]
                                [--engines native torch] [--device cuda] [--shape small] [--max-naive 64]
"""

import statistics
import time

import torch

from benchmarks.support.harness import Table, medians, options
from benchmarks.support.naive import NaiveForecaster
from benchmarks.support.workload import random_pair, series_request
from kronos_model.devices.cores import num_cores
from kronos_model.engine.build import build_engine
from kronos_model.engine.engine import Engine
from kronos_model.engine.generation import SamplingParams, SeriesRequest
from kronos_model.engine.memory import CPU_SLOTS
from kronos_model.engine.transformer.linear import Affine, FusedLinear
from kronos_model.model import Kronos
from kronos_model.tokenizer import KronosTokenizer

LOOKBACK, HORIZON, MAX_CONTEXT = 400, 100, 512
NAIVE_STEPS_AT = (0, 33, 66, 99)
BANDWIDTH_BYTES = 512 * 2**20


def moment(device: torch.device) -> float:
    """The time at which the device has done all work so far."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def naive_s(model: Kronos, tokenizer: KronosTokenizer, requests: list[SeriesRequest]) -> float:
    """Seconds for the whole horizon, from the mean of a few steps across it."""
    forecaster = NaiveForecaster(model, tokenizer, requests, MAX_CONTEXT)
    prompt = forecaster.tokens
    steps = []
    for step in NAIVE_STEPS_AT:
        generated = prompt[..., -1:].repeat(1, 1, step)  # the time does not depend on the tokens
        forecaster.tokens = torch.cat((prompt, generated), dim=-1)
        start = moment(prompt.device)
        forecaster.step()
        steps.append(moment(prompt.device) - start)
    return statistics.mean(steps) * HORIZON


def start_decoding(engine: Engine, requests: list[SeriesRequest]) -> float:
    """Submit the series and step until all their paths decode. Returns the seconds of prefill."""
    for request in requests:
        engine.submit(request)
    prefill_s, num_paths = 0.0, sum(request.sampling.sample_count for request in requests)
    while engine.has_work:
        engine.step()
        prefill_s += sum(engine.last_step.prefill_s)
        if engine.last_step.num_bars == num_paths:
            return prefill_s
    raise RuntimeError("the first series end before the last ones decode: take fewer of them")


def engine_run(
    engine: Engine, requests: list[SeriesRequest], device: torch.device
) -> tuple[float, float, float]:
    """Seconds of the whole forecast, from tokenizer to prices, of its prefill, and of a step."""
    while engine.prepare():  # what runs before have used often
        pass
    start = moment(device)
    prefill_s = start_decoding(engine, requests)
    num_paths, num_steps, all_decode = engine.last_step.num_bars, 0, moment(device)
    while engine.last_step.num_bars == num_paths:
        engine.step()
        num_steps += 1
        if num_steps == 1:  # a GPU had not finished the prefill before
            prefill_s += sum(engine.last_step.prefill_s)
    step_s = (moment(device) - all_decode) / num_steps
    while engine.has_work:
        engine.step()
    return moment(device) - start, prefill_s, step_s


def requests_of(case: str) -> list[SeriesRequest]:
    """The series of a case: "4x10" is 4 series with 10 paths each."""
    num_series, num_paths = map(int, case.split("x"))
    return [
        series_request(seed, LOOKBACK, HORIZON, SamplingParams(sample_count=num_paths, seed=seed))
        for seed in range(num_series)
    ]


def read_bandwidth(device: torch.device) -> float:
    """Bytes per second read from memory, outside of caches. The best of several passes."""
    data = torch.ones(BANDWIDTH_BYTES // 4, device=device)
    passes = []
    for _ in range(10):
        start = moment(device)
        data.sum()
        passes.append(moment(device) - start)
    return BANDWIDTH_BYTES / min(passes)


def multiplied_bytes(model: Kronos) -> int:
    """Bytes of the float32 weights that a decode step multiplies: blocks, dependency-aware layer, heads."""
    attention = model.dep_layer.cross_attn
    modules = (model.transformer, attention.k_proj, attention.v_proj, attention.out_proj, model.head)
    return sum(4 * parameter.numel() for module in modules for parameter in module.parameters())


def product_rate() -> float:
    """Floating-point operations a second of a large product, by MKL or by oneDNN."""
    matrix = torch.randn(2048, 2048)
    linear = FusedLinear(Affine(matrix, None))
    passes = []
    with torch.inference_mode():
        for multiply in (linear, matrix.mm) * 5:
            start = time.perf_counter()
            multiply(matrix)
            passes.append(time.perf_counter() - start)
    return 2 * 2048**3 / min(passes)


def prefill_operations(model: Kronos, tokenizer: KronosTokenizer, num_series: int) -> float:
    """Floating-point operations of the lookbacks' products and of their attention."""
    stacks = (model.transformer, tokenizer.encoder)
    attention = model.dep_layer.cross_attn
    multiplied = sum(
        parameter.numel()
        for module in (*stacks, attention.k_proj, attention.v_proj)
        for parameter in module.parameters()
    )
    widths = sum(len(stack) * stack[0].self_attn.q_proj.out_features for stack in stacks)
    return num_series * LOOKBACK * (2 * multiplied + 4 * widths * (LOOKBACK + 1) / 2)


def main() -> None:
    given = options(
        __doc__, cases=["1x1", "1x10", "1x64", "64x1"], dtypes=["float32", "bfloat16"], runs=5, naive_runs=2,
        engines=["native", "torch"], max_naive=64, shape="small", device="cpu",
    )  # fmt: skip
    device = torch.device(given.device)
    model, tokenizer = (module.to(device) for module in random_pair(given.shape))
    cases = {case: requests_of(case) for case in given.cases}
    num_paths = {case: sum(each.sampling.sample_count for each in cases[case]) for case in cases}
    max_slots = max(CPU_SLOTS, *num_paths.values())
    engines = {
        (name, kind): build_engine(
            model,
            tokenizer,
            max_context=MAX_CONTEXT,
            max_slots=max_slots,
            dtype=getattr(torch, name),
            kind=kind,
        )
        for name in given.dtypes
        for kind in (given.engines if device.type == "cpu" else ["torch"])
    }
    for (_, kind), engine in engines.items():
        if engine.kind != kind:
            raise SystemExit(f"there is no {kind} engine here: {engine.kind_reason}")
    where = f"{torch.get_num_threads()} threads of {num_cores()} cores"
    if device.type == "cuda":
        where = torch.cuda.get_device_name(device)
    shown = f"shape {given.shape}, {LOOKBACK} → {HORIZON} bars, medians of {given.runs} runs"
    print(f"torch {torch.__version__}, {where}, {shown}")
    table = Table(
        "case:>6", "dtype:>9", "engine:>7", "naive s:>9.2f", "whole s:>9.3f", "min–max s:>13",
        "prefill s:>9.3f", "step ms:>8.2f", "bars/s:>7.0f", "times:>7.1f",
    )  # fmt: skip
    steps_of_one_path: dict[tuple[str, str], float] = {}
    prefills: dict[tuple[str, str], float] = {}
    for case, requests in cases.items():
        paths = num_paths[case]
        slow = statistics.median(
            naive_s(model, tokenizer, requests) if paths <= given.max_naive else float("nan")
            for _ in range(given.naive_runs)
        )
        for engine in engines.values():
            engine_run(engine, requests, device)  # warm up
        rounds = [
            {name: engine_run(engine, requests, device) for name, engine in engines.items()}
            for _ in range(given.runs)
        ]
        for name in engines:
            runs = [each[name] for each in rounds]
            totals = [total_s for total_s, _, _ in runs]
            fast, prefill, step = medians(runs)
            if paths == 1:
                steps_of_one_path[name] = step
            prefills[name] = prefill_operations(model, tokenizer, len(requests)) / prefill
            spread = f"{min(totals):.3f}–{max(totals):.3f}"
            table.row(case, *name, slow, fast, spread, prefill, 1000 * step, paths / step, slow / fast)
    bandwidth, size = read_bandwidth(device), multiplied_bytes(model)
    read_s = size / bandwidth
    print(f"\nmemory is read at {bandwidth / 1e9:.1f} GB/s, {size / 1e6:.1f} MB in {read_s * 1000:.2f} ms")
    for (name, kind), step in steps_of_one_path.items():
        times = f"{step * 1000:.2f} ms, {step / read_s:.2f} × that (of float32)"
        print(f"a {kind} step of one path in {name}: {times}")
    if device.type == "cpu":
        rate = product_rate()
        print(f"\na large product: {rate / 1e9:.0f} GFLOP/s in float32; prefill of the last case:")
        for (name, kind), prefill_rate in prefills.items():
            print(f"{kind}, {name}: {prefill_rate / 1e9:.0f} GFLOP/s, {prefill_rate / rate:.0%} of that")


if __name__ == "__main__":
    main()
