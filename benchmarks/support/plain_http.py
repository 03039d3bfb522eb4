"""What one would write instead of a service: FastAPI around a predictor, with a lock around the model.

With ``RECOMPUTE`` set, the predictor computes the whole window again for every bar, as the reference does.
"""

import asyncio
import os
from types import SimpleNamespace
from typing import Any

import pandas as pd
from fastapi import FastAPI

from benchmarks.support.naive import NaiveForecaster
from kronos_model import Kronos, KronosPredictor, KronosTokenizer
from kronos_model.engine.generation import SeriesRequest


class Recomputing(KronosPredictor):
    def _run(self, requests: list[SeriesRequest], on_bars: object) -> list[Any]:
        forecaster = NaiveForecaster(self.model, self.tokenizer, requests, self.max_context)
        for _ in range(forecaster.horizon):
            forecaster.step()
        ended = zip(requests, forecaster.paths(), strict=True)
        return [SimpleNamespace(request=request, paths=paths) for request, paths in ended]


app = FastAPI()
model = Kronos.from_pretrained(os.environ["KRONOS_MODEL"])
tokenizer = KronosTokenizer.from_pretrained(os.environ["KRONOS_TOKENIZER"])
kind = Recomputing if os.environ.get("RECOMPUTE") else KronosPredictor
predictor = kind(model, tokenizer, device="cpu", max_context=512)
lock = asyncio.Lock()


@app.get("/v1/readyz")
def ready() -> str:
    return "ready"


@app.post("/v1/predict/single")
async def predict(request: dict[str, Any]) -> dict[str, Any]:
    past = pd.DataFrame(request["candles"])
    times, future = (
        pd.Series(pd.to_datetime(request[name])) for name in ("timestamps", "prediction_timestamps")
    )
    options = request["overrides"]
    async with lock:
        forecast = await asyncio.to_thread(
            predictor.predict, past, times, future, len(future),
            top_p=options["top_p"], sample_count=options["sample_count"], seed=options["seed"],
        )  # fmt: skip
    bars = forecast.assign(timestamp=future.dt.strftime("%Y-%m-%dT%H:%M:%S").to_numpy()).to_dict("records")
    return {"series_id": request["series_id"], "prediction": bars}
