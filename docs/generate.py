"""Write the reference pages that come from the code: ``python -m docs.generate`` (``make reference``).

A test holds the committed pages to what this writes.
"""

import ast
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from types import NoneType, SimpleNamespace
from typing import Any, Literal, get_args, get_origin

from prometheus_client.metrics import MetricWrapperBase
from pydantic import SecretStr
from pydantic.fields import FieldInfo

from api_stub.problems import STATUSES, HttpCode
from api_stub.routes.metrics import HttpMetrics
from api_stub.settings import ApiSettings
from kronos_cli.settings import CliSettings
from kronos_client.contract.errors import ErrorCode
from kronos_client.contract.schemas import as_text, documents
from kronos_client.contract.worker_status import TrainingStatus
from kronos_client.settings import PREFIX, RETIRED, ClientSettings, ServiceSettings
from worker.monitoring.metrics import FinetuneMetrics, JobMetrics, WorkerMetrics
from worker.settings import WorkerSettings

FOLDER = Path(__file__).parent / "reference"
NOTE = "<!-- Written by `make reference`: change the code, not this page. -->\n"
TRAINING = TrainingStatus(job_id="", name="", step=0, num_steps=0, loss=0.0)

SETTINGS: dict[str, type[ClientSettings]] = {
    "Every process": ClientSettings,
    "Workers, HTTP API and commands": ServiceSettings,
    "Workers": WorkerSettings,
    "HTTP API": ApiSettings,
    "Flower": CliSettings,
}
BOUNDS = {"ge": "≥", "gt": ">", "le": "≤"}
TYPES = {bool: "true or false", int: "integer", float: "number", Path: "path", str: "text", SecretStr: "text"}


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    return "".join(f"| {' | '.join(line)} |\n" for line in (head, ["---"] * len(head), *rows))


def errors() -> str:
    """The page of error codes."""
    if without := {*ErrorCode, *HttpCode} - STATUSES.keys():
        raise SystemExit(f"{', '.join(without)}: add an HTTP status in _CODES of api_stub/problems.py")
    codes, own = (
        table(
            ("code", "HTTP", "meaning and remedy"),
            ((f"`{code}`", f"{STATUSES[code]:d}", code.meaning) for code in kind),
        )
        for kind in (ErrorCode, HttpCode)
    )
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
    gpu = SimpleNamespace(memory_total_bytes=0, memory_free_bytes=0, utilisation_percent=0)
    forecast = set(families(WorkerMetrics(lambda: {"": load}, lambda: 0, lambda: {"": gpu})))
    training = set(families(FinetuneMetrics(lambda: TRAINING)))

    def rows(found: set[tuple[str, str, str, str]]) -> str:
        return table(("metric", "type", "labels", "meaning"), sorted(found))

    return f"""{NOTE}
# Metrics

[Monitoring](../operate/monitoring.md#prometheus) says how to serve and scrape them. Workers also serve the
metrics of their process, such as `process_resident_memory_bytes`. `model` is the id of a loaded model,
`device` is such as `cuda:0`.

## Every worker

{rows(common)}
## Forecast workers

{rows(forecast - common)}
## Finetuning workers

{rows(training - common)}
## The HTTP API

{rows(set(families(HttpMetrics())))}"""


def settings() -> str:
    """The page of environment variables: for each kind of process those that it reads in addition."""
    sections = "\n".join(
        f"## {title}\n\n{table(('variable', 'value', 'default', 'meaning'), rows_of(kind))}"
        for title, kind in SETTINGS.items()
    )
    return f"""{NOTE}
# Settings

Settings are environment variables. Each process reads them once, when it starts. Only user and password in
the file of `KRONOS_REDIS_URL_FILE` are read again, for each connection: they can change without a restart.

- A name with `_FILE` at its end, as in `KRONOS_REDIS_URL_FILE`, names a file that holds the value, such as a
  Docker secret.
- An empty variable counts as not set.
- A process ends at once, with one line that names the variable, if a value cannot be used.
- `./kronos check` shows variables that begin with `KRONOS_` but are not settings.
- A setting that left this page works for one further version, with a warning that says what to do.
- Clients and workers must agree on the limits of a job. Give both the same values.

{sections}"""


def meanings_of(kind: type[ClientSettings]) -> dict[str, str]:
    """The text under each setting in this class. Only this page needs them, so no process reads them."""
    (definition,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(definition, ast.ClassDef)
    return {
        field.target.id: " ".join(text.value.value.split())
        for field, text in pairwise(definition.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


def rows_of(kind: type[ClientSettings]) -> Iterator[tuple[str, str, str, str]]:
    """Name, values, default and meaning of the settings that this class adds to its base."""
    inherited = {name for base in kind.__bases__ for name in getattr(base, "model_fields", ())}
    meanings = meanings_of(kind)
    for name, field in kind.model_fields.items():
        if name not in inherited and name not in RETIRED:
            default = field.default
            text = default.get_secret_value() if isinstance(default, SecretStr) else default
            shown = "" if text in (None, "") else f"`{text}`"
            yield f"`{PREFIX}{name.upper()}`", values_of(field), shown, meanings[name]


def values_of(field: FieldInfo) -> str:
    """What a setting takes, such as ``integer ≥ 1``."""
    annotation: Any = field.annotation
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(annotation))
    kinds = [kind for kind in get_args(annotation) or (annotation,) if kind is not NoneType]
    limits = ((sign, getattr(bound, name, None)) for bound in field.metadata for name, sign in BOUNDS.items())
    bounds = ", ".join(f"{sign} {limit:g}" for sign, limit in limits if limit is not None)
    return f"{TYPES[kinds[0]]} {bounds}".strip()


PAGES: dict[str, Callable[[], str]] = {"errors.md": errors, "metrics.md": metrics, "settings.md": settings}


if __name__ == "__main__":
    for name, text in PAGES.items():
        (FOLDER / name).write_text(text(), encoding="utf-8")
    for name, document in documents().items():
        (FOLDER.parent / name).write_text(as_text(document), encoding="utf-8")
