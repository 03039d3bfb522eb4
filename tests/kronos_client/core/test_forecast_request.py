"""From what apps ask for to a job of the contract."""

import inspect

from kronos_client.contract.forecast import ForecastJob
from kronos_client.core.forecast_request import ForecastOptions, forecast_payload
from kronos_model.bars.synthetic import candles

CANDLES = candles(seed=1, bars=60).as_dict()


def test_what_clients_take_is_what_a_job_is_made_of():
    taken = set(inspect.signature(forecast_payload).parameters) - {"candles"}
    assert ForecastOptions.__annotations__.keys() == taken


def test_defaults_are_the_contracts():
    job = ForecastJob.model_validate(forecast_payload(CANDLES, pred_len=5))
    assert job == ForecastJob(series=job.series, pred_len=5)


def test_what_was_not_given_is_left_out():
    assert not forecast_payload(CANDLES).keys() & {"pred_len", "model", "deadline_s"}
