"""On a real GPU: the CPU's numbers within its arithmetic, and the same draws in any batch."""

import numpy as np
import pandas as pd
import pytest

from kronos_model import Kronos, KronosPredictor, KronosTokenizer
from kronos_model.bars.columns import COLUMNS
from kronos_model.bars.synthetic import candles

pytestmark = pytest.mark.gpu


def predictor(device: str) -> KronosPredictor:
    model, tokenizer = Kronos.from_pretrained("kronos-tiny"), KronosTokenizer.from_pretrained("kronos-tiny")
    return KronosPredictor(model, tokenizer, device=device, max_context=64)


def series(seed: int) -> tuple[pd.DataFrame, pd.Series, pd.Series]:
    frame = pd.DataFrame(candles(seed, 60).as_dict())
    times = pd.to_datetime(frame["timestamps"])
    return frame.loc[:39, list(COLUMNS)], times[:40], times[40:]


def test_a_greedy_forecast_is_that_of_the_cpu():
    on_gpu, on_cpu = predictor("cuda"), predictor("cpu")
    assert on_gpu.device.type == "cuda"
    assert on_gpu.device_warning is None
    forecasts = [one.predict(*series(1), 20, top_k=1, seed=1) for one in (on_gpu, on_cpu)]
    np.testing.assert_allclose(*forecasts, rtol=1e-3)


def test_a_sampled_forecast_is_the_same_in_any_batch():
    on_gpu = predictor("cuda")
    several = list(zip(*(series(seed) for seed in (1, 2, 3)), strict=True))
    together = on_gpu.predict_batch(*several, 20, sample_count=4, seed=5)[0]
    alone = on_gpu.predict(*series(1), 20, sample_count=4, seed=5)
    np.testing.assert_allclose(together, alone, rtol=1e-3)
