"""Names of models: short ones, misspelled ones, and what is said of those that are only for trying."""

import json

import pytest

from kronos_model.checkpoints.names import BUNDLED_FOLDER, FOR_TRYING, caution_about, did_you_mean, full_name
from kronos_model.checkpoints.source import locate_checkpoint
from kronos_model.errors import CheckpointMissing
from kronos_model.model_pair import default_max_context, tokenizer_of


def test_a_short_name_stands_for_a_full_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = locate_checkpoint("tiny", "model", None, {})
    assert (found.id, found.origin) == ("kronos-tiny", "bundled")
    assert (full_name("mini"), full_name("desk")) == ("NeoQuasar/Kronos-mini", "desk")
    assert (default_max_context("mini"), tokenizer_of("base")) == (2048, "NeoQuasar/Kronos-Tokenizer-base")
    (tmp_path / "tiny").mkdir()
    assert full_name("tiny") == "tiny", "a folder of that name"


def test_a_misspelled_name_has_its_nearest():
    assert did_you_mean("kronos-tny", ["kronos-tiny", "desk"]) == "; did you mean kronos-tiny?"
    assert did_you_mean("smal") == "; did you mean small?"
    assert did_you_mean("smal", ["NeoQuasar/Kronos-small"]) == "; did you mean small?"
    assert did_you_mean("mine", ["kronos-tiny"]) == "", "mini could not be used either"
    assert did_you_mean("small", []) == did_you_mean("small", ["small"]) == "", "it was that name"
    assert did_you_mean("qqq", ["kronos-tiny"]) == ""
    with pytest.raises(CheckpointMissing, match=r"; did you mean kronos-tiny\?"):
        locate_checkpoint("kronos-tiy@", "model", None, {})


@pytest.mark.parametrize(
    ("name", "metadata", "begin"),
    [
        ("kronos-tiny", {"trained": True}, "kronos-tiny was trained on synthetic candles"),
        ("mine@1", {"parent": {"model": "kronos-tiny"}}, "mine@1 comes from a model of synthetic"),
        ("mine@2", {"parent": {"model": "mine@1"}, "for_trying": True}, "mine@2 comes from"),
        ("folder", {"trained": False}, "folder is untrained"),
        ("NeoQuasar/Kronos-small", {}, None),
        ("mine@1", {"parent": {"model": "NeoQuasar/Kronos-small"}}, None),
    ],
)
def test_a_model_for_trying_the_service_is_called_so(name, metadata, begin):
    text = caution_about(name, metadata)
    assert (text is None) == (begin is None)
    if begin is not None:
        assert text.startswith(begin)
        assert text.endswith(f"{FOR_TRYING}.")


def test_a_copy_of_the_bundled_model_is_for_trying_too():
    metadata = json.loads((BUNDLED_FOLDER / "kronos-tiny" / "metadata.json").read_text())
    assert "comes from a model of synthetic candles" in str(caution_about("copy@1", metadata))
