"""The engine alone, on the same series as the service."""

from functools import cache

from benchmarks.support.workload import run_s, series_request
from kronos_model.engine.build import build_engine
from kronos_model.engine.engine import Engine
from kronos_model.model_pair import load_pair

MAX_CONTEXT = 512
MAX_SLOTS = 64


@cache
def _engine(model: str, tokenizer: str) -> Engine:
    pair = load_pair(model, tokenizer)
    return build_engine(pair.model, pair.tokenizer, max_context=MAX_CONTEXT, max_slots=MAX_SLOTS)


def engine_s(model: str, tokenizer: str, num_jobs: int, lookback: int, horizon: int) -> float:
    """Seconds from submitting all series at once to the end of the last one. The first call also loads."""
    engine = _engine(model, tokenizer)
    requests = [series_request(seed, lookback, horizon) for seed in range(num_jobs)]
    return run_s(engine, requests)
