"""Write the reference pages that come from the code: ``python -m docs.generate`` (``make reference``).

A test holds the committed pages to what this writes.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from prometheus_client.metrics import MetricWrapperBase

from api_stub.problems import HttpCode, status_of
from api_stub.routes.metrics import HttpMetrics
from kronos_client.contract.errors import ErrorCode
from worker.monitoring.metrics import FinetuneMetrics, JobMetrics, WorkerMetrics

FOLDER = Path(__file__).parent / "reference"
NOTE = "<!-- Written by `make reference`: change the code, not this page. -->\n"
TRAINING = {"name": "", "stage": "", "step": 0, "num_steps": 0, "loss": 0.0}


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    head = tuple(head)
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def errors() -> str:
    """The page of error codes."""
    codes = table(
        ("code", "HTTP", "meaning and remedy"),
        ((f"`{code}`", str(int(status_of(code))), code.meaning) for code in ErrorCode),
    )
    own = table(("code", "HTTP"), ((f"`{code}`", str(int(status_of(code)))) for code in HttpCode))
    return f"""{NOTE}
# Errors

An error has a code, a message with cause and remedy, the field at fault if there is one, and details.
A failed job [stores it](contract.md#errors), the client raises it as `JobError`, and
[the API](../use/http.md#errors) answers with it and the status below.

## Codes

{codes}
## Codes of the HTTP API alone

{own}"""


def families(metrics: Any) -> Iterator[tuple[str, str, str, str]]:
    """Name, type, labels and meaning of the metrics in a registry, less those of its process."""
    labels = {
        next(iter(metric.describe())).name: metric._labelnames
        for metric in vars(metrics).values()
        if isinstance(metric, MetricWrapperBase)
    }
    for family in metrics.registry.collect():
        if family.name.startswith("kronos_"):
            names = labels.get(family.name) or [name for name in family.samples[0].labels if name != "le"]
            suffix = "_total" if family.type == "counter" else ""
            shown = ", ".join(f"`{name}`" for name in names)
            yield f"`{family.name}{suffix}`", family.type, shown, family.documentation


def metrics() -> str:
    """The page of Prometheus metrics."""
    load = SimpleNamespace(running=0, waiting=0, slots=0)
    common = set(families(JobMetrics(lambda: 0)))
    forecast = set(families(WorkerMetrics(lambda: {"": load}, lambda: 0)))
    training = set(families(FinetuneMetrics(lambda: TRAINING)))

    def rows(found: set[tuple[str, str, str, str]]) -> str:
        return table(("metric", "type", "labels", "meaning"), sorted(found))

    return f"""{NOTE}
# Metrics

[Monitoring](../operate/monitoring.md#prometheus) says how to serve and scrape them. Workers also serve the
metrics of their process, such as `process_resident_memory_bytes`. `model` is the id of a loaded model.

## Every worker

{rows(common)}
## Forecast workers

{rows(forecast - common)}
## Finetuning workers

{rows(training - common)}
## The HTTP API

{rows(set(families(HttpMetrics())))}"""


PAGES: dict[str, Callable[[], str]] = {"errors.md": errors, "metrics.md": metrics}


if __name__ == "__main__":
    for name, text in PAGES.items():
        (FOLDER / name).write_text(text(), encoding="utf-8")
