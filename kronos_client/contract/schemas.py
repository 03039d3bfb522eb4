"""The wire's JSON schemas, and examples of jobs, results and an error, as they are published."""

import json
from pathlib import Path
from typing import Any, Final

from kronos_client.contract.backtest import BacktestJob, BacktestProgress, BacktestResult
from kronos_client.contract.feed import Appended, FeedAppendJob, FeedUpdate
from kronos_client.contract.finetune import FinetuneJob, FinetuneProgress, FinetuneResult
from kronos_client.contract.forecast import ForecastJob
from kronos_client.contract.results import ErrorReport, ForecastProgress, ForecastResult
from kronos_client.contract.worker_status import WORKER_STATUS
from kronos_model.finetuning.config import FinetuneConfig

FILES: Final = Path(__file__).parent / "example_files"
"""The examples. No model computed them."""
JOB_ID: Final = "0f6f8a3e-2b1c-4d55-9a57-1c3f0d9b6a10"
"""The example job's id; the seeds in its result are made from it."""
DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
REFERENCE: Final = "#/$defs/{model}"


def example(name: str) -> dict[str, Any]:
    """The example ``name``, such as ``forecast-job``, of ``FILES``."""
    content: dict[str, Any] = json.loads((FILES / f"{name}.json").read_text(encoding="utf-8"))
    return content


def documents() -> dict[str, dict[str, Any]]:
    """All published documents, by path below the documentation's folder."""
    schemas = {
        "forecast-job": ForecastJob.model_json_schema(),
        "forecast-progress": ForecastProgress.model_json_schema(mode="serialization"),
        "forecast-result": ForecastResult.model_json_schema(mode="serialization"),
        "finetune-job": finetune_job_schema(),
        "finetune-progress": FinetuneProgress.model_json_schema(mode="serialization"),
        "finetune-result": FinetuneResult.model_json_schema(mode="serialization"),
        "backtest-job": BacktestJob.model_json_schema(),
        "backtest-progress": BacktestProgress.model_json_schema(mode="serialization"),
        "backtest-result": BacktestResult.model_json_schema(mode="serialization"),
        "feed-append-job": FeedAppendJob.model_json_schema(),
        "feed-append-result": Appended.model_json_schema(mode="serialization"),
        "feed-update": FeedUpdate.model_json_schema(mode="serialization"),
        "worker-status": WORKER_STATUS.json_schema(),
        "error": ErrorReport.model_json_schema(mode="serialization"),
    }
    published = {f"schemas/{name}.json": {"$schema": DIALECT, **schema} for name, schema in schemas.items()}
    return published | {f"examples/{path.name}": example(path.stem) for path in FILES.glob("*.json")}


def finetune_job_schema() -> dict[str, Any]:
    """A finetuning job's schema, with the fields of a config except those that the job gives itself."""
    schema = FinetuneJob.model_json_schema()
    config = FinetuneConfig.model_json_schema(ref_template=REFERENCE)
    parts = config.pop("$defs")
    del config["properties"]["training_device"]
    config["required"].remove("data")
    del parts["DataConfig"]["properties"]["path"]
    parts["DataConfig"]["required"].remove("path")
    for name in ("model", "tokenizer"):  # a job may not name a folder here
        parts["StartConfig"]["properties"][name]["description"] = "bundled or registered, or a hub id"
    for part in (config, parts["DataConfig"]):
        if not part["required"]:
            del part["required"]
    described = schema["properties"]["config"]
    reference = {"$ref": REFERENCE.format(model="FinetuneConfig")}
    schema["properties"]["config"] = reference | {
        name: described[name] for name in ("default", "description")
    }
    schema["$defs"] |= {**parts, "FinetuneConfig": config}
    return schema


def as_text(document: dict[str, Any]) -> str:
    """A document as the text of its file."""
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
