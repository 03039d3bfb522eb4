"""What one would write instead of a service: FastAPI around the predictor, with a lock around the model."""

import asyncio
import os
from typing import Any

import pandas as pd
from fastapi import FastAPI

from kronos_model import Kronos, KronosPredictor, KronosTokenizer

app = FastAPI()
model = Kronos.from_pretrained(os.environ["KRONOS_MODEL"])
tokenizer = KronosTokenizer.from_pretrained(os.environ["KRONOS_TOKENIZER"])
predictor = KronosPredictor(model, tokenizer, device="cpu", max_context=512)
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
