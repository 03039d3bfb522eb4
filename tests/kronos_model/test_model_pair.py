"""Pairs of model and tokenizer: found together, refused if they do not fit."""

import json
from pathlib import Path
from typing import Any

import pytest

from kronos_model.checkpoints.names import BUNDLED_FOLDER
from kronos_model.checkpoints.source import read_metadata
from kronos_model.errors import CheckpointError, CheckpointMismatch
from kronos_model.model import Kronos
from kronos_model.model_pair import CheckpointPair, default_max_context, load_pair
from kronos_model.tokenizer import KronosTokenizer

REFERENCE = Path(__file__).parents[1] / "data" / "parity" / "a"
TINY = BUNDLED_FOLDER / "kronos-tiny"


@pytest.fixture
def requested(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str | None]]:
    """The requested hub ids and revisions; the reference's checkpoint stands in for each of them."""
    asked: list[tuple[str, str | None]] = []
    for cls in (Kronos, KronosTokenizer):
        original = cls.from_pretrained

        def from_pretrained(
            source: str, *, revision: str | None = None, original: Any = original, **_options: object
        ) -> Any:
            asked.append((source, revision))
            return original(REFERENCE)

        monkeypatch.setattr(cls, "from_pretrained", from_pretrained)
    return asked


@pytest.mark.usefixtures("no_cuda_calls")
def test_loads_the_bundled_pair() -> None:
    pair = load_pair("kronos-tiny")
    assert isinstance(pair, CheckpointPair)
    assert isinstance(pair.model, Kronos)
    assert isinstance(pair.tokenizer, KronosTokenizer)
    assert not pair.model.training
    assert not pair.tokenizer.training
    metadata = json.loads((TINY / "metadata.json").read_text(encoding="utf-8"))
    assert read_metadata("kronos-tiny") == read_metadata("tiny") == read_metadata(TINY) == metadata
    assert metadata["trained"] is True
    assert pair.max_context == metadata["lookback"] + metadata["pred_len"] == 512
    assert sum(path.stat().st_size for path in TINY.rglob("*") if path.is_file()) < 2_000_000


@pytest.mark.parametrize("given", [(str(REFERENCE),), (REFERENCE / "model", REFERENCE / "tokenizer")])
def test_loads_a_pair_from_one_folder_or_two(given: tuple[str | Path, ...]) -> None:
    pair = load_pair(*given)
    assert pair.model.checkpoint is not None
    assert pair.model.checkpoint.folder == REFERENCE / "model"
    assert pair.tokenizer.checkpoint is not None
    assert pair.tokenizer.checkpoint.folder == REFERENCE / "tokenizer"


@pytest.mark.parametrize(
    ("model", "tokenizer", "max_context"),
    [
        (None, "NeoQuasar/Kronos-Tokenizer-base", 512),
        ("NeoQuasar/Kronos-mini", "NeoQuasar/Kronos-Tokenizer-2k", 2048),
        ("NeoQuasar/Kronos-small", "NeoQuasar/Kronos-Tokenizer-base", 512),
        ("NeoQuasar/Kronos-base", "NeoQuasar/Kronos-Tokenizer-base", 512),
    ],
)
def test_a_published_model_brings_its_tokenizer_and_context(
    requested: list[tuple[str, str | None]], model: str | None, tokenizer: str, max_context: int
) -> None:
    pair = load_pair(model, model_revision="m", tokenizer_revision="t")
    assert requested == [(model or "NeoQuasar/Kronos-small", "m"), (tokenizer, "t")]
    assert pair.max_context == max_context


def test_a_named_tokenizer_is_used(requested: list[tuple[str, str | None]]) -> None:
    load_pair("NeoQuasar/Kronos-small", "me/tokenizer")
    assert requested == [("NeoQuasar/Kronos-small", None), ("me/tokenizer", None)]


@pytest.mark.parametrize("model", ["me/model", REFERENCE / "model", str(REFERENCE / "model")])
def test_an_unknown_model_needs_its_tokenizer_named(model: str | Path) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer of '.*model' is not known: name it"):
        load_pair(model)


def test_a_misspelt_model_is_named_with_the_nearest() -> None:
    with pytest.raises(CheckpointError, match=r"; did you mean kronos-tiny\?$"):
        load_pair("kronos-tny")


def test_a_model_and_tokenizer_that_do_not_fit_are_both_named() -> None:
    with pytest.raises(
        CheckpointMismatch, match=r"'kronos-tiny' reads tokens of 8 \+ 10 bits, .*'.*a' writes 6 \+ 6"
    ) as caught:
        load_pair("kronos-tiny", REFERENCE)
    assert caught.value.code == "CHECKPOINT_MISMATCH"
    assert caught.value.details["model"] == {"id": "kronos-tiny", "s1_bits": 8, "s2_bits": 10}
    json.dumps(caught.value.details)


def test_another_split_of_the_same_bits_does_not_fit(tmp_path: Path) -> None:
    model = Kronos(**Kronos.from_pretrained(REFERENCE).config | {"s1_bits": 5, "s2_bits": 7})
    model.save_pretrained(tmp_path / "model")
    with pytest.raises(CheckpointMismatch, match=r"5 \+ 7 bits.* 6 \+ 6 bits"):
        load_pair(tmp_path / "model", REFERENCE)


@pytest.mark.parametrize(("half", "other"), [("model", "tokenizer"), ("tokenizer", "model")])
def test_swapped_halves_are_refused(half: str, other: str) -> None:
    with pytest.raises(CheckpointError, match="setting"):
        load_pair(**{half: REFERENCE / other, other: REFERENCE / other})


def test_models_that_are_not_published_have_the_common_context() -> None:
    assert default_max_context("me/model") == default_max_context(REFERENCE) == 512


def test_metadata_is_empty_without_its_file_and_refused_if_damaged(tmp_path: Path) -> None:
    assert read_metadata("NeoQuasar/Kronos-small") == read_metadata(tmp_path) == {}
    (tmp_path / "metadata.json").write_text("[]")
    assert read_metadata(tmp_path) == {}
    (tmp_path / "metadata.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"metadata\.json cannot be read"):
        read_metadata(tmp_path)
