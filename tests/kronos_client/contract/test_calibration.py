"""What a calibration refuses to correct, and what it corrects."""

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from kronos_client.contract.calibration import Calibration, check_calibrated, check_num_bars
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.jobs import Limits, parse_job, prepare
from kronos_client.contract.results import series_result
from kronos_model.bars.columns import CLOSE, VOLUME
from kronos_model.evaluation.calibration import references
from kronos_model.forecast import Forecast
from tests.kronos_client.contract.contract_jobs import job

FIELDS: dict[str, Any] = {
    "method": "split_conformal",
    "lookback": 6,
    "horizon": 2,
    "sample_count": 4,
    "num_windows": 40,
    "first": "2024-01-01T00:00:00",
    "last": "2024-05-01T00:00:00",
    "fitted_at": datetime.now(UTC) - timedelta(days=2),
    "levels": (0.1, 0.9),
    "weights": {"close": 0.5, "volume": 1.0},
    "shifts": {"close": ((-1.0, -2.0), (1.0, 2.0)), "volume": ((-9.0, -9.0), (1.0, 1.0))},
}
LEVELS, SHIFTED = ("0.1", "0.9"), ("close", "volume")
CALIBRATION = Calibration.model_validate(FIELDS)


def asking(**fields: Any) -> Any:
    sampling = {"sample_count": 4} | fields.pop("sampling", {})
    output = {"calibrated": True, "quantiles": [0.1, 0.9]} | fields.pop("output", {})
    return parse_job(job(**{"pred_len": 2, "sampling": sampling, "output": output} | fields), Limits())


@pytest.mark.parametrize(
    ("fields", "field", "must"),
    [
        ({"lookback": 5}, "lookback", "a lookback of 6 bars, or auto"),
        ({"pred_len": 3}, "pred_len", "at most 2 bars ahead"),
        ({"sampling": {"sample_count": 3}}, "sampling.sample_count", "4 paths or more"),
        ({"sampling": {"top_p": 0.9}}, "sampling.top_p", "a top_p of 1.0"),
        ({"output": {"quantiles": [0.05]}}, "output.quantiles", "quantiles from 0.1 to 0.9"),
    ],
)
def test_a_forecast_unlike_those_of_the_fit_is_refused(fields, field, must):
    with pytest.raises(JobError) as refused:
        check_calibrated(asking(**fields), "mine@2", CALIBRATION)
    assert (refused.value.code, refused.value.field) == (ErrorCode.NOT_CALIBRATED, field)
    assert refused.value.message == f"{field}: mine@2 is calibrated for {must}"
    assert refused.value.details["calibration"]["num_windows"] == 40


def test_a_model_without_one_and_a_series_that_is_too_short_are_refused():
    with pytest.raises(JobError, match="run `kronos calibrate`"):
        check_calibrated(asking(), "mine@2", None)
    assert check_calibrated(asking(lookback=6, pred_len=1), "mine@2", CALIBRATION) is CALIBRATION
    with pytest.raises(JobError) as refused:
        check_num_bars([6, 5], CALIBRATION)
    assert refused.value.field == "series.1.close"


def test_the_quantiles_of_calibrated_columns_are_corrected_and_nothing_else():
    asked = asking(output={"paths": True})
    [series] = prepare(asked, "id", Limits())
    forecast = Forecast(np.random.default_rng(1).normal(10, 1, (4, 2, 6)).astype(np.float32), 0)
    plain, calibrated = (
        series_result(series, forecast, asked.output, one).model_dump() for one in (None, CALIBRATION)
    )
    ours, theirs = (
        {(level, name): np.array(one["quantiles"][level].pop(name)) for level in LEVELS for name in SHIFTED}
        for one in (calibrated, plain)
    )
    anchor, scale = (one[0] for one in references(series.bars[None]))
    for index, level in enumerate(LEVELS):
        moved = anchor[CLOSE] + (theirs[level, "close"] - anchor[CLOSE]) / 2
        shift = scale[CLOSE] * np.array(FIELDS["shifts"]["close"][index])
        np.testing.assert_allclose(ours[level, "close"], moved + shift)
    assert not ours["0.1", "volume"].any(), "a volume is not below 0"
    np.testing.assert_allclose(ours["0.9", "volume"] - theirs["0.9", "volume"], scale[VOLUME])
    assert calibrated == plain


def test_it_says_how_old_it_is_and_must_be_whole():
    assert CALIBRATION.info().age_days == pytest.approx(2, abs=0.1)
    for wrong in (
        {"shifts": FIELDS["shifts"] | {"close": ((-1.0, -2.0),)}},
        {"weights": {"close": 1.0}},
        {"horizon": 3},
        {"levels": (0.1, float("nan"))},
    ):
        with pytest.raises(ValidationError):
            Calibration.model_validate(FIELDS | wrong)
