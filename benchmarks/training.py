"""How fast is a training step, compared with a plain loop like that of the reference?

The predictor's stage of ``finetune`` on windows of 400 + 48 synthetic bars, in the shapes of Kronos-mini and
-small with random weights. Each run is a separate process on all cores; the kinds take turns. Both loops
start from the same weights and use the same windows and draws, so their float32 losses must agree.

    python -m benchmarks.training [--shapes mini small] [--steps 8] [--runs 3] [--device cpu]
"""

import argparse
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

WARM_UP_STEPS: Final = 2
LOOKBACK, PRED_LEN = 400, 48
BATCH_SIZE: Final = {"mini": 16, "small": 8, "base": 4}
KINDS: Final = {"cpu": ("plain", "no", "bf16"), "cuda": ("plain", "no", "bf16", "fp16")}
NAMES: Final = {
    "plain": "plain loop, float32",
    "no": "ours, float32",
    "bf16": "ours, bf16",
    "fp16": "ours, fp16",
}
NUM_BARS: Final = 4000
SEED: Final = 0


def measure(kind: str, shape: str, steps: int, device: str) -> dict[str, Any]:
    """One run in this process: seconds per step, share of the loader, last loss, peak memory."""
    import torch

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    with tempfile.TemporaryDirectory() as folder:
        run = _plain if kind == "plain" else _ours
        seconds, losses, loader_s = run(kind, shape, steps + WARM_UP_STEPS, device, Path(folder))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if device != "cpu":
        peak = torch.cuda.max_memory_allocated() / 2**20
    return {
        "step_s": statistics.median(seconds[WARM_UP_STEPS:]),
        "loader_share": loader_s / sum(seconds) if loader_s is not None else None,
        "last_loss": losses[-1],
        "peak_mib": peak,
    }


def _prepared(shape: str, folder: Path) -> tuple[Any, Any, Any]:
    """Save the start checkpoint and candles. Returns model, tokenizer and the candles."""
    import pandas as pd

    from benchmarks.support.shapes import random_pair
    from kronos_model.bars.synthetic import candles

    model, tokenizer = random_pair(shape)
    model.save_pretrained(folder / "start" / "model")
    tokenizer.save_pretrained(folder / "start" / "tokenizer")
    table = pd.DataFrame(candles(seed=1, bars=NUM_BARS).as_dict())
    table.to_parquet(folder / "candles.parquet")
    return model, tokenizer, table


def _num_windows(num_bars: int) -> int:
    return num_bars - LOOKBACK - PRED_LEN + 1


def _plain(kind: str, shape: str, steps: int, device: str, folder: Path) -> Any:
    from benchmarks.support.plain_training import PlainWindows, train_plainly
    from kronos_model.finetuning.stages.batches import window_order

    model, tokenizer, table = _prepared(shape, folder)
    batch_size = BATCH_SIZE[shape]
    num_train = _num_windows(NUM_BARS - 2 * (LOOKBACK + PRED_LEN))
    order = window_order(SEED, "predictor", 0, num_train, steps * batch_size)
    windows = PlainWindows(table, order.tolist(), LOOKBACK, PRED_LEN)
    return *train_plainly(model.to(device), tokenizer.to(device), windows, batch_size, SEED), None


def _ours(kind: str, shape: str, steps: int, device: str, folder: Path) -> Any:
    from kronos_model.finetuning import finetune, parse_config
    from kronos_model.finetuning.stages.windows import WindowDataset

    _, _, table = _prepared(shape, folder)
    batch_size = BATCH_SIZE[shape]
    cut = NUM_BARS - 2 * (LOOKBACK + PRED_LEN)  # validation is one window
    config = parse_config(
        {
            "data": {
                "path": str(folder / "candles.parquet"),
                "lookback": LOOKBACK,
                "pred_len": PRED_LEN,
                "validation_from": str(table["timestamps"][cut]),
                "test_from": str(table["timestamps"][NUM_BARS - LOOKBACK]),
                "gap": 0,
            },
            "start": {"model": str(folder / "start")},
            "stages": ["predictor"],
            "predictor": {
                "epochs": 1,
                "batch_size": batch_size,
                "windows_per_epoch": steps * batch_size,
                "validation_windows": 1,
            },
            "evaluation": {"windows": 0},
            "training_device": device,
            "mixed_precision": kind,
            "seed": SEED,
        }
    )
    loader_s = 0.0
    fetch = WindowDataset.__getitems__

    def timed(self: WindowDataset, indices: Any) -> Any:
        nonlocal loader_s
        started = time.perf_counter()
        batch = fetch(self, indices)
        loader_s += time.perf_counter() - started
        return batch

    WindowDataset.__getitems__ = timed  # type: ignore[method-assign]
    moments, losses = [], []

    def record(event: Any) -> None:
        if event["event"] == "step":
            moments.append(time.perf_counter())
            losses.append(event["loss"])

    finetune(config, folder / "run", listeners=[record])
    seconds = [after - before for before, after in itertools.pairwise(moments)]
    return [seconds[0], *seconds], losses, loader_s


def _in_a_process(arguments: argparse.Namespace, kind: str, shape: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.training", "--one", kind, "--shapes", shape]
    command += ["--steps", str(arguments.steps), "--device", arguments.device]
    environment = os.environ | {"OMP_NUM_THREADS": str(len(os.sched_getaffinity(0)))}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=["mini", "small"], choices=tuple(BATCH_SIZE))
    parser.add_argument("--steps", type=int, default=8, help="measured, after two that warm up")
    parser.add_argument("--runs", type=int, default=3, help="processes of each kind; the median counts")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--one", choices=("plain", "no", "bf16", "fp16"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one, arguments.shapes[0], arguments.steps, arguments.device)))
        return
    for shape in arguments.shapes:
        runs: dict[str, list[dict[str, Any]]] = {}
        for _ in range(arguments.runs):
            for kind in KINDS[arguments.device]:
                runs.setdefault(kind, []).append(_in_a_process(arguments, kind, shape))
        _print_table(shape, runs)


def _print_table(shape: str, runs: dict[str, list[dict[str, Any]]]) -> None:
    print(f"Kronos-{shape}, {BATCH_SIZE[shape]} windows of {LOOKBACK} + {PRED_LEN} bars per step")
    print(f"{'':<20} {'steps/s':>8} {'times':>6} {'spread':>14} {'peak MiB':>9} {'loader':>7} {'loss':>9}")
    first = None
    for kind, results in runs.items():
        step_s = statistics.median(one["step_s"] for one in results)
        first = first or step_s
        slowest, fastest = (1 / pick(one["step_s"] for one in results) for pick in (max, min))
        share = results[0]["loader_share"]
        print(
            f"{NAMES[kind]:<20} {1 / step_s:>8.3f} {first / step_s:>6.2f} {slowest:>6.3f} – {fastest:<5.3f} "
            f"{statistics.median(one['peak_mib'] for one in results):>9.0f} "
            f"{'' if share is None else f'{share:.2%}':>7} {results[0]['last_loss']:>9.5f}"
        )
    print(flush=True)


if __name__ == "__main__":
    main()
