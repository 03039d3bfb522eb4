"""What docs/ publishes is what the code does."""

import json
from pathlib import Path

import jsonschema
import pytest
from pydantic import BaseModel

from kronos_client.contract.backtest import BacktestJob, BacktestProgress, BacktestResult, parse_backtest_job
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.feed import FeedUpdate
from kronos_client.contract.finetune import FinetuneJob, FinetuneProgress, FinetuneResult, parse_finetune_job
from kronos_client.contract.jobs import ForecastJob, Limits, parse_job, prepare
from kronos_client.contract.results import ErrorReport, ForecastResult
from kronos_client.contract.schemas import JOB_ID, as_text, documents, example

DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.parametrize("name", documents())
def test_docs_are_in_step_with_the_code(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == as_text(documents()[name]), (
        "out of step: run `make reference`"
    )


def test_nothing_else_is_published() -> None:
    published = {
        str(path.relative_to(DOCS))
        for folder in ("schemas", "examples")
        for path in (DOCS / folder).iterdir()
    }

    assert published == set(documents())


@pytest.mark.parametrize(
    "name",
    [
        *("forecast-job", "forecast-result", "finetune-job", "finetune-result"),
        *("backtest-job", "backtest-result", "worker-status", "error"),
    ],
)
def test_examples_validate_against_their_schemas(name: str) -> None:
    schema = json.loads((DOCS / f"schemas/{name}.json").read_text(encoding="utf-8"))
    example = json.loads((DOCS / f"examples/{name}.json").read_text(encoding="utf-8"))

    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(example)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(schema).validate({})


def test_examples_are_read_by_the_models() -> None:
    job = parse_job(json.loads((DOCS / "examples/forecast-job.json").read_text()), Limits())
    result = ForecastResult.model_validate_json((DOCS / "examples/forecast-result.json").read_text())
    report = ErrorReport.model_validate_json((DOCS / "examples/error.json").read_text())

    finetune_job = parse_finetune_job(json.loads((DOCS / "examples/finetune-job.json").read_text()), Limits())
    finetuned = FinetuneResult.model_validate_json((DOCS / "examples/finetune-result.json").read_text())

    assert finetuned.model.name == finetune_job.name
    backtest = parse_backtest_job(json.loads((DOCS / "examples/backtest-job.json").read_text()), Limits())
    tested = BacktestResult.model_validate_json((DOCS / "examples/backtest-result.json").read_text())
    assert len(tested.report["models"]) == len(backtest.models)
    prepared = prepare(job, JOB_ID, Limits())
    assert [one.future_timestamps for one in prepared] == [one.timestamps for one in result.series]
    assert [one.seed for one in prepared] == [one.seed for one in result.series]
    assert JobError(*report.exc_message).code in set(ErrorCode)


def test_the_example_error_is_the_one_that_the_defect_gives() -> None:
    payload = example("forecast-job")
    payload["series"][0]["high"][3] = 185.1

    with pytest.raises(JobError) as caught:
        prepare(parse_job(payload, Limits()), JOB_ID, Limits())

    assert list(caught.value.args) == example("error")["exc_message"]


@pytest.mark.parametrize(
    "model",
    [
        *(ForecastJob, FinetuneJob, FinetuneProgress, FinetuneResult),
        *(BacktestJob, BacktestProgress, BacktestResult, FeedUpdate),
    ],
)
def test_the_contract_page_names_every_field(model: type[BaseModel]) -> None:
    page = (DOCS / "reference" / "contract.md").read_text(encoding="utf-8")
    schema = model.model_json_schema()
    fields = [
        *schema["properties"],
        *(name for part in schema.get("$defs", {}).values() for name in part["properties"]),
    ]

    assert [name for name in fields if f"`{name}`" not in page] == []


def test_the_contract_page_states_the_limits() -> None:
    page = (DOCS / "reference" / "contract.md").read_text(encoding="utf-8")

    for name, value in Limits().model_dump().items():
        shown = f"{value // 2**20} MiB" if name.endswith("_bytes") else str(value)
        assert shown in page, name
