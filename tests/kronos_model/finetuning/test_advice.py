"""After a model that is not better, the one thing to try is what its scores or its curve show."""

from typing import Any

import pytest

from kronos_model.finetuning.advice import next_step
from kronos_model.finetuning.config import parse_config

UNCLEAR = {"verdict": "unclear", "low": -3.0}
LOWEST = "the validation loss was lowest after epoch "


def step(
    *,
    against: dict[str, Any] | None = None,
    held: float = 0.8,
    mase: float = 2.0,
    crps: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0),
    losses: tuple[float, ...] = (3.0, 2.5, 2.6, 2.7),
    schedule: str = "one_cycle",
    num_paths: int = 30,
) -> str:
    model = {
        "against": against or {"bootstrap": UNCLEAR},
        "scores": {"coverage": {"0.8": held}, "mase": mase},
        "by_horizon": {"crps_scaled": list(crps)},
    }
    bootstrap = {"mase": 2.0, "by_horizon": {"crps_scaled": [1.0] * 4}}
    fields = {"predictor": {"optimiser": {"schedule": schedule}}, "evaluation": {"sample_count": num_paths}}
    found = next_step(model, bootstrap, losses, parse_config({"data": {"path": "a"}} | fields))
    return (found or "").removeprefix("Next, try ")


def test_a_better_model_needs_nothing():
    better = {"verdict": "better", "low": 1.0}
    assert step(against={"bootstrap": better, "start": better}) == ""
    assert step(against={"bootstrap": better, "start": UNCLEAR}) != ""


@pytest.mark.parametrize(
    ("measured", "advice"),
    [
        ({"against": {"bootstrap": {"verdict": "unclear", "low": None}}}, "more data to compare on, "),
        ({"held": 0.6}, "calibration alone (kronos calibrate): "),
        ({"held": 0.95}, "calibration alone "),
        ({"held": 0.6, "num_paths": 8}, "fewer epochs"),
        ({"held": 0.6, "mase": 2.1}, "fewer epochs"),
        ({"crps": (0.9, 0.95, 1.1, 1.2)}, "a shorter horizon, data.pred_len 2: there CRPS is 7.5 % better "
         "than the bootstrap's, 3.8 % worse over all."),
        ({"crps": (0.9, 0.9, 0.9, 0.9)}, "fewer epochs"),
        ({}, f"fewer epochs, predictor.epochs 2: {LOWEST}2 of 4"),
        ({"schedule": "constant"}, f"more data: {LOWEST}2 of 4"),
        ({"losses": (2.0, 2.1, 2.2)}, f"more data: {LOWEST}1 of 3"),
        ({"losses": (2.0, 1.8, 1.7)}, "more epochs, predictor.epochs 6: "),
        ({"losses": (2.0,)}, "more epochs, predictor.epochs 2: "),
        ({"losses": (2.0, 1.8, 1.799)}, "more data: the validation loss hardly fell in the last epoch, so "),
        ({"losses": ()}, ""),
    ],
)  # fmt: skip
def test_the_advice_follows_from_what_was_measured(measured, advice):
    found = step(**measured)
    assert found.startswith(advice)
    assert bool(found) == bool(advice)
