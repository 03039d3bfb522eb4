"""After a model that is not better, the one thing to try is what its scores or its curve show."""

from typing import Any

import pytest

from kronos_model.finetuning.next_step import next_step

CURVE = [3.0, 2.5, 2.6, 2.7]
DATA = "more data: the predictor's validation loss "
UNCLEAR = {"verdict": "unclear", "low": -3.0}


def step(
    *,
    against: dict[str, Any] | None = None,
    held: float = 0.8,
    mase: float = 2.0,
    crps: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0),
    losses: list[float] = CURVE,
    is_one_cycle: bool = True,
    num_paths: int = 30,
) -> str:
    model = {
        "against": against or {"bootstrap": UNCLEAR},
        "scores": {"coverage": {"0.8": held}, "mase": mase},
        "by_horizon": {"crps_scaled": list(crps)},
    }
    bootstrap = {"mase": 2.0, "by_horizon": {"crps_scaled": [1.0] * 4}}
    epochs = [{"stage": "predictor", "validation_loss": loss} for loss in losses]
    found = next_step(model, bootstrap, epochs, is_one_cycle=is_one_cycle, num_paths=num_paths)
    return (found or "").removeprefix("Next, try ")


def test_a_better_model_needs_nothing():
    better = {"verdict": "better", "low": 1.0}
    assert step(against={"bootstrap": better, "start": better}) == ""
    assert step(against={"bootstrap": better, "start": UNCLEAR}) != ""


@pytest.mark.parametrize(
    ("measured", "advice"),
    [
        ({"against": {"bootstrap": {"verdict": "unclear", "low": None}}}, "more data to compare on: "),
        ({"held": 0.6}, "calibration alone (kronos calibrate): "),
        ({"held": 0.95}, "calibration alone "),
        ({"held": 0.6, "num_paths": 8}, "fewer epochs"),
        ({"held": 0.6, "mase": 2.1}, "fewer epochs"),
        ({"crps": (0.9, 0.95, 1.1, 1.2)}, "a shorter horizon, data.pred_len 2: over the first 2 bars ahead "
         "the CRPS is 7.5 % below the bootstrap's, over all 4 3.8 % above."),
        ({"crps": (0.9, 0.9, 0.9, 0.9)}, "fewer epochs"),
        ({}, "fewer epochs, predictor.epochs 2: the validation loss was lowest after epoch 2 of 4"),
        ({"is_one_cycle": False}, DATA + "was lowest after epoch 2 of 4"),
        ({"losses": [2.0, 2.1, 2.2]}, DATA + "was lowest after epoch 1 of 3"),
        ({"losses": [2.0, 1.8, 1.7]}, "more epochs than 3: "),
        ({"losses": [2.0]}, "more epochs than 1: "),
        ({"losses": [2.0, 1.8, 1.799]}, DATA + "no longer falls after 3 epochs"),
        ({"losses": []}, ""),
    ],
)  # fmt: skip
def test_the_advice_follows_from_what_was_measured(measured, advice):
    found = step(**measured)
    assert found.startswith(advice)
    assert bool(found) == bool(advice)
