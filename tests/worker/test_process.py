"""Names of workers."""

import re

import pytest

from kronos_model.model_pair import DEFAULT_MODEL
from worker import process
from worker.process import node_name
from worker.settings import WorkerSettings

BARE = WorkerSettings.model_construct()


@pytest.mark.parametrize(
    ("model", "device", "expected"),
    [
        (None, "cpu", "forecast-cpu-kronos-small-7@host"),
        ("NeoQuasar/Kronos-base", "cuda:1", "forecast-cuda1-kronos-base-7@host"),
        ("kronos-tiny", "mps", "forecast-mps-kronos-tiny-7@host"),
        ("/models/My model (2)/", "cpu", "forecast-cpu-my-model-2-7@host"),
        ("C:\\models\\mine", "cpu", "forecast-cpu-mine-7@host"),
        ("mine@3", "cpu", "forecast-cpu-mine-3-7@host"),
        ("模型", "cpu", "forecast-cpu-model-7@host"),
        ("/", "cpu", "forecast-cpu-model-7@host"),
    ],
)
def test_the_name_has_the_device_and_the_model(model, device, expected):
    assert node_name(BARE.model_copy(update={"model": model}), device, "host", 7) == expected


def test_a_finetuning_worker_serves_no_model():
    settings = BARE.model_copy(update={"role": "finetune", "model": "kronos-tiny"})
    assert node_name(settings, "cuda:0", "host", 7) == "finetune-cuda0-7@host"


def test_names_are_short_and_safe_in_keys_and_urls():
    name = node_name(
        BARE.model_copy(update={"model": "x/" + "a b*?/" * 99 + "é" * 99 + "b" * 99}), "cpu", "h", 1
    )
    assert re.fullmatch(r"[a-z0-9._-]{1,64}@h", name)


def test_the_default_model_in_the_name_is_the_one_that_is_loaded():
    assert DEFAULT_MODEL.rpartition("/")[2].lower() == process.DEFAULT_MODEL
