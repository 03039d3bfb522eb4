"""On a real GPU: the CPU's numbers within its arithmetic. The engine's own tests go further."""

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


def test_a_greedy_forecast_is_that_of_the_cpu(first_gpu):
    on_gpu, on_cpu = predictor("cuda"), predictor("cpu")
    assert str(on_gpu.device) == first_gpu
    assert on_gpu.device_warning is None
    forecasts = [one.predict(*series(1), 20, top_k=1, seed=1) for one in (on_gpu, on_cpu)]
    np.testing.assert_allclose(*forecasts, rtol=1e-3)
