"""A file is replaced whole or stays as it was."""

import errno
import os
from pathlib import Path

import pytest

from kronos_model.atomic_write import atomic_write, disk_errors
from kronos_model.errors import DiskFull


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_the_new_content_appears_at_the_end_of_the_block(tmp_path: Path) -> None:
    path = tmp_path / "new" / "state.json"
    for text in ("first", "second"):
        with atomic_write(path) as staging:
            staging.write_text(text)
            assert not path.exists() or path.read_text() == "first"
        assert (path.read_text(), names(path.parent)) == (text, ["state.json"])


def test_a_failure_leaves_only_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text("old")

    def fail() -> None:
        with atomic_write(path) as staging:
            staging.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert (path.read_text(), names(tmp_path)) == ("old", ["state.json"])


def test_the_files_mode_follows_the_umask(tmp_path: Path) -> None:
    plain, path = tmp_path / "plain", tmp_path / "state.json"
    plain.touch()
    with atomic_write(path) as staging:
        staging.touch()
        staging.chmod(0o600)  # as safetensors does
    assert path.stat().st_mode == plain.stat().st_mode


def test_disk_errors_name_the_file_and_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "state.json"
    refused = pytest.raises(DiskFull, match=r"state\.json cannot be written: .*; make room")
    with refused, disk_errors(path), atomic_write(path):
        pass


@pytest.mark.parametrize(
    ("number", "remedy"), [(errno.ENOSPC, "make room"), (errno.EROFS, "let this process write there")]
)
def test_where_writing_is_forbidden_room_is_no_remedy(number: int, remedy: str, tmp_path: Path) -> None:
    with pytest.raises(DiskFull, match=f"; {remedy}, or choose another folder"), disk_errors(tmp_path):
        raise OSError(number, os.strerror(number))
