"""The candle files that a command names, and the names of their forecasts."""

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
    return list(find_inputs(paths, output))


def test_a_folder_includes_all_files_below_it() -> None:
    assert names("a") == ["b/y", "b/z", "x"]
    assert names("a/b", "a/x.csv") == ["y", "z", "x"]


def test_a_file_that_is_named_twice_is_listed_once(folder: Path) -> None:
    assert names("a/x.csv", "a", str(folder / "a" / "x.csv")) == ["x", "b/y", "b/z"]


def test_patterns_that_the_shell_did_not_expand_are_expanded(folder: Path) -> None:
    assert names("a/**/*.p*") == ["z"]
    assert names(f"{folder}/a/*.csv") == [".h", "x"]


def test_a_file_that_is_named_itself_may_have_any_suffix() -> None:
    assert names("a/notes.txt", "a/.h.csv") == ["notes", ".h"]


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("no/such.csv", "no/such.csv does not exist"),
        ("a/*.json", "does not exist"),
        ("empty", "has no files"),
    ],
)
def test_a_path_without_files_is_refused(path: str, reason: str) -> None:
    Path("empty").mkdir()
    with pytest.raises(InputError, match=reason.replace("*", r"\*")):
        names("a", path)


def test_files_of_one_name_get_different_names() -> None:
    Path("a/x.parquet").touch()
    assert names("a") == ["b/y", "b/z", "x.csv", "x.parquet"]
    Path("a/x.parquet").unlink()
    for path in ("a/b/x.csv", "a/b/x.csv.gz", "a/X.pq"):
        Path(path).touch()
    assert names("a/x.csv", "a/../a/b/x.csv", "a/X.pq") == ["a/x", "b/x", "X"]
    assert names("a/x.csv", "a/X.pq") == ["x", "X-2"]


def test_files_in_the_output_are_not_inputs() -> None:
    assert names("a", output=Path("a/b")) == ["x"]
    assert names("a", output=Path("a/x.csv")) == ["b/y", "b/z"]
    with pytest.raises(InputError, match=r"a/x\.csv lies where the forecasts go"):
        names("a/x.csv", output=Path("a"))
    with pytest.raises(InputError, match="all files lie in a"):
        names("a", output=Path("a"))
    Path("elsewhere").symlink_to("a")
    with pytest.raises(InputError, match="all files lie in elsewhere"):
        names("a", output=Path("elsewhere"))
