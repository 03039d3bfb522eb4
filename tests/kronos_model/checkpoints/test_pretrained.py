"""Local checkpoints: the reference's files round trip, and defects of others are named."""

import json
import pickle  # to write a file that runs code when unpickled: a test proves that loading never unpickles it
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from kronos_model.checkpoints.pretrained import PretrainedModule
from kronos_model.errors import CheckpointError, CheckpointMissing
from kronos_model.model import Kronos
from kronos_model.tokenizer import KronosTokenizer
from tests.waiting import WAIT_S

ROOT = Path(__file__).parents[3]
REFERENCE = ROOT / "tests" / "data" / "parity" / "a"
BOTH = pytest.mark.parametrize("cls", [Kronos, KronosTokenizer])


class Tiny(PretrainedModule):
    """The smallest module with one setting of each type."""

    checkpoint_part = "model"

    def __init__(self, width: int, rate: float, biased: bool = True) -> None:
        super().__init__()
        if rate > 1:
            raise ValueError("rate must not exceed 1")
        self.linear = torch.nn.Linear(width, width, bias=biased)
        self.register_buffer("steps", torch.zeros(1, dtype=torch.int64))
        self.dropout = torch.nn.Dropout(rate)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Tiny(width=3, rate=0.5).save_pretrained(tmp_path / "tiny")
    return tmp_path / "tiny"


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def edit_tensors(folder: Path, **changes: Tensor | None) -> None:
    path = folder / "model.safetensors"
    content = load_file(path) | {name.replace("__", "."): tensor for name, tensor in changes.items()}
    save_file({name: tensor for name, tensor in content.items() if tensor is not None}, path)


def refusal(folder: str | Path, cls: type[PretrainedModule] = Tiny, **options: Any) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        cls.from_pretrained(folder, **options)
    assert "\n" not in str(caught.value)
    return caught.value


@BOTH
def test_the_references_files_round_trip(cls: type[PretrainedModule], tmp_path: Path) -> None:
    source = REFERENCE / cls.checkpoint_part
    module = cls.from_pretrained(source)
    stored = load_file(source / "model.safetensors")
    assert module.state_dict().keys() == stored.keys()
    for name, tensor in module.state_dict().items():
        assert tensor.dtype == stored[name].dtype
        assert torch.equal(tensor, stored[name])
    assert module.config == json.loads((source / "config.json").read_text())

    module.save_pretrained(tmp_path / "copy")
    assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == ["config.json", "model.safetensors"]
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "copy" / name).read_bytes() == (source / name).read_bytes()
    assert len({path.stat().st_mode for path in (tmp_path / "copy").iterdir()}) == 1


@BOTH
def test_a_folder_with_a_pair_serves_for_either_half(cls: type[PretrainedModule]) -> None:
    module = cls.from_pretrained(str(REFERENCE))
    assert module.checkpoint is not None
    assert module.checkpoint.folder == REFERENCE / cls.checkpoint_part
    assert (module.checkpoint.id, module.checkpoint.origin) == (str(REFERENCE), "folder")
    assert module.checkpoint.revision is None


@BOTH
def test_the_bundled_checkpoint_loads_by_name(
    cls: type[PretrainedModule], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "kronos-tiny").mkdir()
    monkeypatch.chdir(tmp_path)
    module = cls.from_pretrained("kronos-tiny")
    assert module.checkpoint is not None
    assert (module.checkpoint.id, module.checkpoint.origin) == ("kronos-tiny", "bundled")


def test_a_module_records_its_arguments_and_a_loaded_one_is_in_eval_mode_and_can_be_trained(
    folder: Path,
) -> None:
    constructed, loaded = Tiny(3, rate=0.1), Tiny.from_pretrained(folder)
    assert constructed.checkpoint is None
    assert constructed.config == {"width": 3, "rate": 0.1, "biased": True}
    assert not any(part.training for part in loaded.modules())
    assert all(parameter.requires_grad for parameter in loaded.parameters())
    assert Tiny.from_pretrained(folder, map_location="meta").linear.weight.is_meta


def test_half_precision_weights_are_widened(folder: Path) -> None:
    weight = torch.tensor([[0.5, 1.0, 2.0]] * 3)
    edit_tensors(folder, linear__weight=weight.half())
    loaded = Tiny.from_pretrained(folder).linear.weight
    assert loaded.dtype == torch.float32
    assert torch.equal(loaded, weight)


UNFIT = [
    ({"extra": torch.ones(1)}, r"1 tensor unknown \(extra\)"),
    ({f"x{i}": torch.ones(1) for i in range(5)}, r"5 tensors unknown \(x0, x1, x2, …\)"),
    ({"linear__weight": torch.ones(3, 4)}, r"weight \(\(3, 4\) float32, expected \(3, 3\) float32\)"),
    ({"steps": torch.zeros(1)}, r"1 tensor wrong \(steps \(\(1,\) float32, expected \(1,\) int64\)\)"),
    ({"linear__bias": torch.ones(3).long()}, r"linear\.bias \(\(3,\) int64, expected \(3,\) float32\)"),
    ({"linear__bias": torch.tensor([0, float("nan"), 1])}, r"1 tensor wrong \(linear\.bias \(not finite\)\)"),
    ({"linear__bias": None, "bias": torch.ones(3)}, r"missing \(linear\.bias\); 1 tensor unknown \(bias\)"),
]


@pytest.mark.parametrize(("changes", "message"), UNFIT)
def test_names_the_tensors_that_do_not_fit(
    folder: Path, changes: dict[str, Tensor | None], message: str
) -> None:
    edit_tensors(folder, **changes)
    with pytest.raises(CheckpointError, match=message) as caught:
        Tiny.from_pretrained(folder)
    assert str(folder / "model.safetensors") in str(caught.value)
    json.dumps(caught.value.details)


def test_names_the_tensors_that_are_missing(folder: Path) -> None:
    edit_tensors(folder, linear__weight=None, linear__bias=None)
    with pytest.raises(
        CheckpointMissing, match=r"2 tensors missing \(linear\.weight, linear\.bias\)"
    ) as caught:
        Tiny.from_pretrained(folder)
    assert caught.value.details == {"missing": ["linear.weight", "linear.bias"]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": None}, r"1 setting missing \(width\)"),
        ({"biased": None}, r"1 setting missing \(biased\)"),
        ({"height": 4}, r"1 setting unknown \(height\)"),
        ({"width": "3"}, r"1 setting wrong \(width='3' \(expected int\)\)"),
        ({"width": 3.0}, r"width=3\.0 \(expected int\)"),
        ({"width": True}, r"width=True \(expected int\)"),
        ({"biased": 1}, r"biased=1 \(expected bool\)"),
        ({"rate": False}, r"rate=False \(expected float\)"),
        ({"rate": [0.5]}, r"rate=\[0\.5\] \(expected float\)"),
        ({"rate": 1.5}, r"does not describe a Tiny: rate must not exceed 1"),
        ({"width": -3}, r"does not describe a Tiny"),
        ({"width": 5}, r"linear\.weight \(\(3, 3\) float32, expected \(5, 5\) float32\)"),
    ],
)
def test_names_the_settings_that_do_not_fit(folder: Path, changes: dict[str, Any], message: str) -> None:
    edit_config(folder, **changes)
    with pytest.raises(CheckpointError, match=message):
        Tiny.from_pretrained(folder)


def test_a_whole_number_serves_as_a_float(folder: Path) -> None:
    edit_config(folder, rate=0)
    assert Tiny.from_pretrained(folder).dropout.p == 0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        *((text, "cannot be read as JSON") for text in ("", "{", "{'width': 3}", "\xff\xfe", "[" * 100_000)),
        *((text, "not an object of settings") for text in ("3", "null", "[]", '"width"')),
    ],
)
def test_a_config_that_is_no_json_object_is_refused(folder: Path, text: str, reason: str) -> None:
    (folder / "config.json").write_bytes(text.encode("latin-1"))
    assert reason in str(refusal(folder))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    error = refusal(folder)
    assert isinstance(error, CheckpointMissing)
    assert f"'{folder}' has no {name}" in str(error)


@pytest.mark.parametrize("num_bytes", [0, 4, 8, 100, -1])
def test_truncated_weights_are_refused(folder: Path, num_bytes: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:num_bytes])
    error = refusal(folder)
    assert type(error) is CheckpointError
    assert f"{path} is damaged or not a safetensors file" in str(error)


class Bomb:
    """Creates a file when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors"])
def test_pickled_weights_are_refused_unread(folder: Path, name: str) -> None:
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(pickle.dumps(Bomb(folder / "exploded")))
    assert ("pytorch_model.bin is a pickle" if name.endswith("bin") else "not a safetensors") in str(
        refusal(folder)
    )
    assert not (folder / "exploded").exists()


@pytest.mark.parametrize(
    "source", ["a/b/c", "../nowhere", "/nowhere", "./x", "", "a//b", "-a", "a b", "x.git", "a" * 5000, "\0"]
)
def test_an_unknown_name_is_refused(source: str) -> None:
    error = refusal(source)
    assert isinstance(error, CheckpointMissing)
    assert "neither a bundled checkpoint (kronos-tiny) nor a folder nor a hub id (owner/name)" in str(error)


def test_a_path_is_never_requested_from_the_hub(folder: Path) -> None:
    for path in (folder / "NeoQuasar", folder / "config.json"):  # one is missing, the other no folder
        assert f"no checkpoint folder '{path}'" in str(refusal(path))


@pytest.mark.parametrize("source", ["kronos-tiny", str(REFERENCE)])
def test_a_revision_of_a_local_checkpoint_is_refused(source: str) -> None:
    assert "only checkpoints on the hub have revisions" in str(refusal(source, Kronos, revision="main"))


class TestSaving:
    def test_replaces_a_checkpoint_and_leaves_other_files(self, folder: Path) -> None:
        (folder / "notes.txt").write_text("mine")
        module = Tiny(width=4, rate=0.25)
        module.save_pretrained(folder)
        assert Tiny.from_pretrained(folder).config == module.config
        assert torch.equal(Tiny.from_pretrained(folder).linear.weight, module.linear.weight)
        assert sorted(path.name for path in folder.parent.rglob("*")) == [
            "config.json", "model.safetensors", "notes.txt", "tiny"
        ]  # fmt: skip

    @pytest.mark.parametrize("name", ["save_file", "sync"])
    def test_a_failure_leaves_only_the_old_checkpoint(
        self, folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = {path.name: path.read_bytes() for path in folder.iterdir()}

        def fail(*_args: object) -> None:
            raise OSError("No space left on device")

        monkeypatch.setattr(f"kronos_model.checkpoints.pretrained.{name}", fail)
        for target in (folder, folder.parent / "new"):
            with pytest.raises(OSError, match="No space left"):
                Tiny(width=4, rate=0.5).save_pretrained(target)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
        assert [path.name for path in folder.parent.iterdir()] == ["tiny"]

    def test_makes_the_folders_above_and_follows_a_relative_path(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        Tiny(width=3, rate=0.5).save_pretrained("a/b/../c")
        assert Tiny.from_pretrained(tmp_path / "a" / "c").config["width"] == 3

    def test_tensors_that_share_memory_are_saved_separately(self, tmp_path: Path) -> None:
        module = Tiny(width=3, rate=0.5, biased=False)
        module.tied = module.linear.weight
        module.save_pretrained(tmp_path / "tied")
        assert load_file(tmp_path / "tied" / "model.safetensors").keys() == {"linear.weight", "steps", "tied"}

    def test_a_config_with_other_keys_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match="2 settings missing"):
            Tiny(width=3, rate=0.5).save_pretrained(tmp_path / "x", config={"width": 3})
        assert list(tmp_path.iterdir()) == []

    def test_pushing_uploads_the_two_files(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        pushed: dict[str, Any] = {}

        class Api:
            def __init__(self, token: str | None) -> None:
                pushed["token"] = token

            def create_repo(self, repo_id: str, **_options: object) -> Any:
                return type("Repo", (), {"repo_id": repo_id})

            def upload_folder(self, repo_id: str, folder_path: Path, **_options: object) -> str:
                pushed.update(repo_id=repo_id, files=sorted(path.name for path in folder_path.iterdir()))
                return "https://hub/commit"

        monkeypatch.setattr("huggingface_hub.hub_mixin.HfApi", Api)
        url = Tiny(width=3, rate=0.5).save_pretrained(
            tmp_path / "x", repo_id="me/x", push_to_hub=True, token="t"
        )
        assert url == "https://hub/commit"
        assert pushed == {"token": "t", "repo_id": "me/x", "files": ["config.json", "model.safetensors"]}


def test_loading_draws_nothing_and_does_not_import_the_compiler():
    """Its import is a third of what a worker takes to start."""
    script = (
        "import sys, torch; from kronos_model import Kronos, KronosTokenizer; "
        "before = torch.get_rng_state(); "
        "[cls.from_pretrained(sys.argv[1]) for cls in (Kronos, KronosTokenizer)]; "
        "assert torch.equal(before, torch.get_rng_state()); assert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script, str(REFERENCE)], check=True, timeout=WAIT_S, cwd=ROOT)
