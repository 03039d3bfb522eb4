"""The training of the bundled checkpoint, shortened."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kronos_model.bundled.held_out import FIRST_INSTRUMENT, NAME
from kronos_model.bundled.train import CONFIG, SEEDS, train
from kronos_model.checkpoints.source import is_trained, read_metadata
from kronos_model.finetuning.config import load_config
from kronos_model.model_pair import load_pair

QUICK = [
    f"{stage}.{field}"
    for stage in ("tokenizer", "predictor")
    for field in ("epochs=1", "batch_size=4", "windows_per_epoch=8", "validation_windows=4")
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    run, folder = tmp_path_factory.mktemp("run"), tmp_path_factory.mktemp("made")
    data = ["data.validation_fraction=0.4"]  # there are few bars
    return folder, train(folder, run, seeds=range(1_000, 1_002), num_bars=700, overrides=QUICK + data)


def test_the_checkpoint_has_the_shapes_of_the_bundled_one(made: tuple[Path, dict[str, Any]]) -> None:
    pair, bundled = load_pair(made[0]), load_pair(NAME)
    assert pair.model.config == bundled.model.config
    assert pair.tokenizer.config == bundled.tokenizer.config
    assert pair.max_context == bundled.max_context


def test_metadata_names_data_and_config(made: tuple[Path, dict[str, Any]]) -> None:
    folder, metadata = made
    assert metadata == json.loads((folder / "metadata.json").read_text(encoding="utf-8"))
    assert is_trained(folder)
    assert metadata["config"]["data"]["path"] == "kronos_model.bars.synthetic.candles, seeds 1000 to 1001"
    assert str(folder.parent) not in json.dumps(metadata)


def test_the_bundled_checkpoint_was_made_with_the_current_config() -> None:
    metadata = read_metadata(NAME)
    path = metadata["config"]["data"]["path"]
    assert metadata["config"] == load_config(CONFIG, [f"data.path={json.dumps(path)}"]).model_dump(
        mode="json"
    )
    assert str(SEEDS[-1]) in path
    assert np.isfinite(metadata["held_out"]["scores"][NAME]["pinball"])


def test_training_and_test_share_no_instrument() -> None:
    assert SEEDS[-1] < FIRST_INSTRUMENT
