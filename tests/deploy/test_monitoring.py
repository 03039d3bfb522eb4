"""Alerts and dashboard in deploy/ ask for what is served."""

import json
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry

from api_stub.routes.metrics import HttpMetrics
from kronos_client.contract.errors import ErrorCode
from worker.monitoring.metrics import FinetuneMetrics, WorkerMetrics

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
ALERTS = yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text())
DASHBOARD = json.loads((DEPLOY / "grafana/dashboard.json").read_text())
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
JOBS = ("kronos-forecast", "kronos-finetune", "kronos-gpu", "kronos-api")
# Of NVIDIA's exporter, with its default counters.
GPU_METRICS = ("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_XID_ERRORS")

# Words of an expression that are no names of metrics.
NO_METRICS = {
    "by", "on", "and", "or", "unless", "sum", "max", "min", "rate", "increase", "histogram_quantile", "le",
    "label_values", "vector", "ignoring", "group_left", "avg", "count", "bool", "without", "absent",
    "label_replace",
}  # fmt: skip
STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
LABELS = re.compile(r"\{[^}]*\}|\b(?:by|on|without|ignoring)\s*\([^)]*\)")


@cache
def served() -> dict[str, set[str]]:
    """The labels that each sample has, by its name, as workers and the API serve them."""
    registries: list[CollectorRegistry] = [
        WorkerMetrics(dict, lambda: 0).registry,
        FinetuneMetrics(lambda: None).registry,
        HttpMetrics().registry,
    ]
    suffixes = {
        "counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count"), "unknown": ("",),
    }  # fmt: skip
    names: dict[str, set[str]] = {"up": set(), **{name: {"gpu", "Hostname"} for name in GPU_METRICS}}
    for registry in registries:
        declared = {
            name: set(getattr(collector, "_labelnames", ()))
            for collector, given in registry._collector_to_names.items()
            for name in given
        }
        for family in registry.collect():
            labels = declared.get(family.name, set()) | {
                label for sample in family.samples for label in sample.labels
            }
            labels |= set(getattr(family, "_labelnames", ()))
            for suffix in suffixes[family.type]:
                own = {"le"} if suffix == "_bucket" else set()
                names[family.name + suffix] = labels | own | {"job", "instance"}
    return names


def asked_for(expression: str) -> set[str]:
    """The metrics that an expression of PromQL names."""
    bare = LABELS.sub(" ", STRING.sub('""', expression))
    words = re.findall(r"(?<![\w.$])[a-zA-Z_]\w*", re.sub(r"\[[^\]]*\]", " ", bare))
    return set(words) - NO_METRICS


EXPRESSIONS = [
    *(pytest.param(rule["expr"], id=rule["alert"]) for rule in RULES),
    *(
        pytest.param(target["expr"], id=f"{panel['title']} {target['refId']}")
        for panel in PANELS
        for target in panel["targets"]
    ),
    *(
        pytest.param(variable["definition"], id=variable["name"])
        for variable in DASHBOARD["templating"]["list"]
        if "definition" in variable
    ),
]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_metric_that_is_asked_for_is_served(expression: str) -> None:
    names = asked_for(expression) - {"instance"}
    assert names
    assert names <= served().keys()


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_label_that_is_matched_is_one_that_some_metric_has(expression: str) -> None:
    text = STRING.sub('""', expression)
    matched = set(re.findall(r"[{,]\s*(\w+)\s*[=!]~?\s*\"\"", text))
    grouped = {
        label.strip()
        for group in re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", text)
        for label in group.split(",")
        if label.strip()  # on () matches by none
    }
    known = set().union(*(served()[name] for name in asked_for(expression) - {"instance"})) | {
        "job",
        "instance",
    }
    assert matched | grouped <= known


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_what_every_replica_of_the_api_tells_of_redis_counts_once(expression: str) -> None:
    bare = re.sub(r"\{[^}]*\}", "", STRING.sub('""', expression))
    of_redis = r"kronos_(?:queue_jobs|workers|workers_ready|jobs_training|redis_up)\b"
    taken_once = rf"(?:(?:max|min)(?: by \([^)]*\) )?|absent)\({of_redis}"
    assert len(re.findall(of_redis, bare)) == len(re.findall(taken_once, bare))


def test_alerts_name_codes_and_jobs_that_there_are() -> None:
    for rule in RULES:
        for codes in re.findall(r'\bcode=~?"([^"]*)"', rule["expr"]):
            for code in codes.split("|"):
                assert any(re.fullmatch(code, known) for known in ErrorCode), code
        assert rule["annotations"].keys() == {"summary", "description"}
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
    config = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())
    assert tuple(one["job_name"] for one in config["scrape_configs"]) == JOBS
    assert config["rule_files"] == ["alerts.yml"]
    # A file that holds one key, whatever becomes of those of people.
    assert config["scrape_configs"][-1]["authorization"] == {"credentials_file": "/run/secrets/metrics_key"}


def test_promtool_finds_nothing_wrong() -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    for command in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]):
        done = subprocess.run(
            ["promtool", *command], cwd=DEPLOY / "prometheus", capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_panels_lie_side_by_side_and_have_names_of_their_own() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert len({panel["title"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
