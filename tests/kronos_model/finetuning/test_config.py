"""An invalid config is refused with the field at fault."""

import json
import subprocess
import sys

import pytest

from kronos_model.errors import FinetuningConfigError
from kronos_model.finetuning.config import FinetuneConfig, load_config, parse_config

SHAPE = {"n_layers": 1, "d_model": 8, "n_heads": 2, "ff_dim": 8}
TOKENIZER_SHAPE = {"d_model": 8, "n_heads": 2, "ff_dim": 8, "n_enc_layers": 2, "n_dec_layers": 2}


def config(**fields):
    return {"data": {"path": "candles"}} | fields


@pytest.mark.parametrize(
    ("fields", "field", "text"),
    [
        ({"data": {}}, "data.path", "is missing"),
        ({"data": {"path": "x", "lookbak": 3}}, "data.lookbak", "check its spelling"),
        ({"data": {"path": "x", "lookback": 0}}, "data.lookback", "greater than or equal to 2"),
        ({"data": {"path": "x", "lookback": True}}, "data.lookback", "should be a number"),
        ({"data": {"path": "x", "lookback": {"min": 1, "max": 9}}}, "data.lookback.min", "equal to 2"),
        ({"data": {"path": "x", "lookback": {"min": 9, "max": 8}}}, "data.lookback", "min 9 is above max 8"),
        ({"data": {"path": 3}}, "data.path", "valid string"),
        ({"data": {"path": "x", "validation_fraction": 0.6, "test_fraction": 0.5}}, "data", "nothing to"),
        ({"data": {"path": "x", "test_from": "2024-01-01"}}, "data", "or neither"),
        ({"predictor": {"optimiser": {"learning_rate": -1}}}, "predictor.optimiser.learning_rate", "than 0"),
        ({"predictor": {"epochs": "many"}}, "predictor.epochs", "valid integer"),
        ({"data": {"path": ""}}, "data.path", "at least 1 character"),
        ({"data": {"path": []}}, "data.path", "valid string"),
        ({"data": {"path": "x", "lookback": 1}}, "data.lookback", "greater than or equal to 2"),
        ({"data": {"path": "x", "validation_fraction": 0}}, "data.validation_fraction", "greater than 0"),
        ({"predictor": {"epochs": True}}, "predictor.epochs", "not true or false"),
        ({"start": {"model": SHAPE | {"n_heads": 3}, "tokenizer": "a"}}, "start.model", "twice 3 heads"),
        ({"start": {"model": SHAPE | {"d_model": 12}, "tokenizer": "a"}}, "start.model", "twice 4 heads"),
        (
            {"start": {"model": SHAPE, "tokenizer": TOKENIZER_SHAPE | {"group_size": 3}}},
            "start.tokenizer",
            "does not divide the 20 bits",
        ),
        (
            {"start": {"model": SHAPE, "tokenizer": TOKENIZER_SHAPE | {"s2_bits": 5}}},
            "start",
            "differ in s2_bits",
        ),
        ({"start": {"model": SHAPE}}, "start", "needs a tokenizer"),
        ({"start": {"model": {"n_layers": 1}, "tokenizer": "a"}}, "start.model.d_model", "is missing"),
        ({"stages": ["predictor", "tokenizer"]}, "config", "tokenizer and then predictor"),
        ({"stages": []}, "stages", "at least 1"),
        (
            {"stages": ["predictor"], "start": {"model": SHAPE, "tokenizer": TOKENIZER_SHAPE}},
            "config",
            "add the stage tokenizer",
        ),
        ({"stages": ["tokenizer"], "start": {"model": SHAPE, "tokenizer": "a"}}, "config", "stage predictor"),
        ({"training_device": "gpu"}, "training_device", "pattern"),
        ({"training_device": "cuda:01"}, "training_device", "pattern"),
        ({"mixed_precision": "fp8"}, "mixed_precision", "'no', 'bf16' or 'fp16'"),
        ({"seed": -1}, "seed", "greater than or equal to 0"),
        ({"clip": float("nan")}, "clip", "finite"),
    ],
    ids=lambda value: value if isinstance(value, str) and "." in value else None,
)  # fmt: skip
def test_an_invalid_config_is_refused_with_its_field(fields, field, text):
    with pytest.raises(FinetuningConfigError, match=text) as raised:
        parse_config(config(**fields))
    assert raised.value.field == field
    assert raised.value.code == "INVALID_CONFIG"


def test_a_part_that_is_given_keeps_the_defaults_of_its_stage_for_the_rest():
    changed = parse_config(config(predictor={"optimiser": {"learning_rate": 1}}))
    assert changed.predictor.optimiser.betas == (0.9, 0.95)


def test_a_config_survives_json():
    ours = parse_config(config(start={"model": SHAPE, "tokenizer": TOKENIZER_SHAPE}, seed=3))
    assert parse_config(json.loads(ours.model_dump_json())) == ours


def test_dates_of_yaml_are_times(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("data: {path: a, validation_from: 2024-06-18T09:35:00+08:00, test_from: 2024-07-01}")
    data = load_config(path).data
    assert (data.validation_from, data.test_from) == ("2024-06-18T09:35:00+08:00", "2024-07-01")


@pytest.mark.parametrize("form", ["yaml", "json"])
def test_files_and_overrides(tmp_path, form):
    path = tmp_path / f"config.{form}"
    path.write_text(
        '{"data": {"path": "a"}, "predictor": {"epochs": 5}}'
        if form == "json"
        else "data: {path: a}\npredictor:\n  epochs: 5\n  optimiser: {learning_rate: 1e-3}\n"
    )
    read = load_config(path, ["predictor.epochs=3", "data.columns.close=Adj Close", 'data.path=["x", "y"]'])
    assert (read.predictor.epochs, read.data.paths) == (3, ("x", "y"))
    assert read.data.columns == {"close": "Adj Close"}
    assert load_config(path, seed=4).seed == 4
    if form == "yaml":
        assert read.predictor.optimiser.learning_rate == 1e-3  # a text to YAML


@pytest.mark.parametrize(
    ("text", "overrides", "found"),
    [
        ("- a", [], "holds no fields"),
        ("a: [", [], "cannot be read"),
        ("data: {path: a}", ["predictor.epochs"], "no override"),
        ("data: {path: a}", ["predictor.epochs=["], "cannot be read"),
        ("data: {path: a}", ["=3"], "no override"),
        ("data: {path: a}", ["data.path.more=3"], "data.path"),
        ("!!python/object/apply:os.system ['true']", [], "cannot be read"),
    ],
)
def test_unusable_files_and_overrides_are_refused(tmp_path, text, overrides, found):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(FinetuningConfigError, match=found):
        load_config(path, overrides)
    with pytest.raises(FinetuningConfigError, match="cannot be read"):
        load_config(tmp_path / "missing.yaml")


def test_a_config_is_checked_without_torch():
    code = (
        "import sys; from kronos_model.finetuning import FinetuneConfig, parse_config; "
        "parse_config({'data': {'path': 'x'}}); assert not {'torch', 'yaml'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_field_without_a_plain_name_has_a_description():
    def models(model):
        yield model
        for info in model.model_fields.values():
            if hasattr(info.annotation, "model_fields"):
                yield from models(info.annotation)

    plain_names = {
        "data", "start", "stages", "tokenizer", "predictor", "evaluation", "optimiser", "seed", "epochs",
        "gradient_accumulation_steps", "mixed_precision", "betas", "weight_decay", "epsilon", "schedule",
        "sample_count", "temperature", "top_p", "model_revision", "tokenizer_revision",
    }  # fmt: skip
    for model in models(FinetuneConfig):
        for name, info in model.model_fields.items():
            assert info.description or name in plain_names, f"{model.__name__}.{name}"


@pytest.mark.parametrize(
    ("start", "stages"),
    [
        ({}, ("tokenizer", "predictor")),
        ({"model": "kronos-tiny"}, ("predictor",)),
        ({"tokenizer": "kronos-tiny"}, ("predictor",)),
        ({"model": "kronos-tiny", "tokenizer": "another"}, ("tokenizer", "predictor")),
    ],
)
def test_a_tokenizer_whose_weights_are_computed_is_trained_only_if_asked_for(start, stages):
    assert parse_config(config(start=start)).stages == stages
    assert parse_config(config(start=start, stages=["tokenizer"])).stages == ("tokenizer",)


def test_yaml_without_its_package_is_refused_with_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    path = tmp_path / "config.yaml"
    path.write_text("{}")
    with pytest.raises(FinetuningConfigError, match="YAML needs a further package: pip install PyYAML"):
        load_config(path)
    path.with_suffix(".json").write_text(json.dumps(config()))
    assert load_config(path.with_suffix(".json"))
