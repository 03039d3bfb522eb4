"""Workers of both engines: each names its own, and their forecasts agree."""

import os

import numpy as np

from kronos_cli.commands.status import engines_text
from kronos_client.client import ForecastClient
from kronos_client.contract.worker_status import ForecastWorkerStatus
from kronos_model.bars.columns import COLUMNS
from tests.integration.conftest import StartWorker
from tests.waiting import WAIT_S

TOLERANCE = 1e-5


def test_a_worker_names_its_engine_and_both_give_the_same_forecasts(
    start_worker: StartWorker, client: ForecastClient, candles
):
    forecasts = []
    for setting, engine in (("auto", "native"), ("torch", "torch")):
        kernels = os.environ["KRONOS_KERNEL_CACHE"]
        worker = start_worker(KRONOS_ENGINE=setting, KRONOS_KERNEL_CACHE=kernels).wait_until_ready()
        status = ForecastWorkerStatus.model_validate(worker.announcements()[0])
        assert [(model.engine, model.engine_warning) for model in status.models] == [(engine, None)]
        assert (engines_text(status), status.all_warnings()) == (engine, [])
        result = client.forecast(
            [candles[:40], candles[:120]], pred_len=8, sample_count=8, seed=3, lookback=120, timeout_s=WAIT_S
        )
        assert result.engine == engine
        forecasts.append([[one.mean[name] for name in COLUMNS] for one in result.series])
        assert worker.stop() == 0
    # Another token anywhere would change a mean by far more.
    np.testing.assert_allclose(*forecasts, rtol=TOLERANCE, atol=1e-9)
