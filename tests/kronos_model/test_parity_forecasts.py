"""Every forecast that the reference made, through the public predictor."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from kronos_model import Kronos, KronosPredictor, KronosTokenizer

PARITY = Path(__file__).parents[1] / "data" / "parity" / "a"
CASES = json.loads((PARITY / "cases.json").read_text())["cases"]
TOLERANCE = 1e-5


@pytest.fixture(scope="module", params=["native", "torch"])
def predictor(request) -> KronosPredictor:
    model = Kronos.from_pretrained(PARITY / "model")
    tokenizer = KronosTokenizer.from_pretrained(PARITY / "tokenizer")
    max_context = CASES[0]["max_context"]
    predictor = KronosPredictor(model, tokenizer, device="cpu", max_context=max_context, engine=request.param)
    assert (predictor._engine.kind, predictor._engine.kind_reason) == (request.param, None)
    return predictor


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_forecast_equals_the_reference(predictor, case):
    candles = pd.read_csv(PARITY / "candles.csv", parse_dates=["timestamps"])
    lookback, pred_len = case["lookback"], case["pred_len"]
    past = [candles.iloc[start : start + lookback] for start in case["starts"]]
    future = [candles.iloc[start + lookback : start + lookback + pred_len] for start in case["starts"]]
    frames = predictor.predict_batch(
        [df[case["columns"]] for df in past],
        [df["timestamps"] for df in past],
        [df["timestamps"] for df in future],
        pred_len,
        T=case["T"],
        top_k=case["top_k"],
        top_p=case["top_p"],
        sample_count=case["sample_count"],
        seed=case["torch_manual_seed"],
    )
    assert len(frames) == len(case["starts"])
    for number, frame in enumerate(frames):
        expected = pd.read_csv(PARITY / f"{case['name']}.{number}.csv")
        assert list(frame.columns) == list(expected.columns)
        # Volume and amount of a series without any are noise of about 1e-6: the bound has an absolute part.
        np.testing.assert_allclose(frame.to_numpy(), expected.to_numpy(), rtol=TOLERANCE, atol=1e-9)
