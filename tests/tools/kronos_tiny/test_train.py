"""The training of the bundled checkpoint, shortened."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kronos_model.checkpoints.source import read_metadata
from kronos_model.model_pair import load_pair
from tools.kronos_tiny.held_out import FIRST_INSTRUMENT, LOOKBACKS, NAME
from tools.kronos_tiny.train import FACTORS, SEEDS, config_of, train

QUICK = [
    "data.lookback={min: 32, max: 40}", "data.pred_len=8", "data.validation_from=null", "data.test_from=null",
    "data.validation_fraction=0.4", "predictor.epochs=1", "predictor.batch_size=4",
    "predictor.windows_per_epoch=8", "predictor.validation_windows=4",
]  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    run, folder = tmp_path_factory.mktemp("run"), tmp_path_factory.mktemp("made")
    seeds = range(1_000, 1_002)
    return folder, train(folder, run, seeds=seeds, num_bars=450, overrides=QUICK, num_sharpening=1)


def test_the_checkpoint_has_the_shapes_of_the_bundled_one(made: tuple[Path, dict[str, Any]]) -> None:
    pair, bundled = load_pair(made[0]), load_pair(NAME)
    assert pair.model.config == bundled.model.config
    assert pair.tokenizer.config == bundled.tokenizer.config
    assert pair.max_context == bundled.max_context == 512


def test_metadata_names_data_and_config(made: tuple[Path, dict[str, Any]]) -> None:
    folder, metadata = made
    assert metadata == json.loads((folder / "metadata.json").read_text(encoding="utf-8"))
    assert read_metadata(folder)["trained"] is True
    assert metadata["config"]["data"]["path"] == "market_candles, seeds 1000 to 1001"
    assert metadata["sharpened"] in FACTORS
    assert metadata["parent"]["model"] == "grid_model, grid_tokenizer"
    assert str(folder.parent) not in json.dumps(metadata)


def test_the_bundled_checkpoint_was_made_with_the_current_config() -> None:
    metadata = read_metadata(NAME)
    config = metadata["config"]
    assert config == config_of(config["data"]["path"], config["start"]["model"]).model_dump(mode="json")
    assert str(SEEDS[-1]) in config["data"]["path"]
    assert SEEDS[-1] < FIRST_INSTRUMENT  # training and test share no instrument
    assert metadata["lookback"] == config["data"]["lookback"]["max"] == max(LOOKBACKS)
    for lookback in LOOKBACKS:
        assert np.isfinite(metadata["held_out"][str(lookback)]["models"][NAME]["scores"]["crps"])
