"""Which files a command is given, and what their forecasts are called."""

from pathlib import Path

import pytest

from kronos_cli.files.inputs import find_inputs
from kronos_model.errors import InputError

OUT = Path("out")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("a/x.csv", "a/b/y.PARQUET", "a/b/z.pq", "a/notes.txt", "a/.hidden/h.csv", "a/.h.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def names(*paths: str, output: Path = OUT) -> list[str]:
    return [one.name for one in find_inputs(paths, output)]


def test_a_folder_stands_for_its_files_and_those_of_its_folders() -> None:
    assert names("a") == ["b/y", "b/z", "x"]
    assert names("a/b", "a/x.csv") == ["y", "z", "x"]


def test_a_file_that_is_named_twice_is_one(folder: Path) -> None:
    assert names("a/x.csv", "a", str(folder / "a" / "x.csv")) == ["x", "b/y", "b/z"]


def test_patterns_that_a_shell_left_are_filled_in(folder: Path) -> None:
    assert names("a/**/*.p*") == ["z"]
    assert names(f"{folder}/a/*.csv") == [".h", "x"]


def test_any_file_that_is_named_by_itself_is_taken() -> None:
    assert names("a/notes.txt", "a/.h.csv") == ["notes", ".h"]


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("no/such.csv", "no/such.csv does not exist"),
        ("a/*.json", "does not exist"),
        ("empty", "has no files"),
    ],
)
def test_what_leads_nowhere_is_refused(path: str, reason: str) -> None:
    Path("empty").mkdir()
    with pytest.raises(InputError, match=reason.replace("*", r"\*")):
        names("a", path)


def test_two_files_of_one_name_are_refused_with_both() -> None:
    Path("a/X.parquet").touch()
    with pytest.raises(InputError, match=r"a/X\.parquet and a/x\.csv would both be called 'x'"):
        names("a")


def test_forecasts_of_an_earlier_run_are_no_candles_and_candles_are_never_overwritten() -> None:
    assert names("a", output=Path("a/b")) == ["x"]
    assert names("a", output=Path("a/x.csv")) == ["b/y", "b/z"]
    with pytest.raises(InputError, match=r"a/x\.csv lies where the forecasts go"):
        names("a/x.csv", output=Path("a"))
    with pytest.raises(InputError, match="all files lie in a"):
        names("a", output=Path("a"))
    Path("elsewhere").symlink_to("a")
    with pytest.raises(InputError, match="all files lie in elsewhere"):
        names("a", output=Path("elsewhere"))
