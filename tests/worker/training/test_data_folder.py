"""What a job may name in the data folder, and that nothing leads out of it."""

import pytest

from kronos_client.contract.errors import ErrorCode, JobError
from worker.training.job_inputs import DataFolder


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "data"
    (root / "asia" / "tokyo").mkdir(parents=True)
    (root / "asia" / "tokyo" / "a.csv").write_text("")
    (root / "b.csv").write_text("")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.csv").write_text("")
    return DataFolder(root)


@pytest.mark.parametrize("path", ["b.csv", "asia", "asia/tokyo/a.csv", "."])
def test_paths_inside_are_allowed(folder, path):
    assert folder.check(path) == (folder.root / path).resolve()


def test_links_that_stay_inside_are_allowed(folder):
    (folder.root / "same.csv").symlink_to("b.csv")
    (folder.root / "same").symlink_to(folder.root / "asia")
    assert folder.check("same.csv") == folder.root / "b.csv"
    assert folder.check("same") == folder.root / "asia"
    assert folder.check(".") == folder.root


def test_a_data_folder_that_is_a_link_itself_is_allowed(folder, tmp_path):
    (tmp_path / "link").symlink_to(folder.root)
    assert DataFolder(tmp_path / "link").check("b.csv") == folder.root / "b.csv"


@pytest.mark.parametrize(
    "path",
    [
        "../outside",
        "asia/../../outside/secret.csv",
        "/etc/passwd",
        "nothing.csv",
        "b.csv/x",
        "a\0b",
        "x" * 5000,
    ],
)
def test_paths_outside_are_refused(folder, path):
    with pytest.raises(JobError) as refused:
        folder.check(path)
    assert (refused.value.code, refused.value.field) == (ErrorCode.DATA_NOT_ALLOWED, "data.path")
    assert str(folder.root) not in refused.value.message


@pytest.mark.parametrize(
    ("link", "target"),
    [
        ("out", "outside"),
        ("out.csv", "outside/secret.csv"),
        ("asia/tokyo/out.csv", "outside/secret.csv"),
        ("asia/out", "outside"),
    ],
)
@pytest.mark.parametrize("named", ["link", "."])
def test_links_that_lead_out_are_refused_at_any_depth(folder, tmp_path, link, target, named):
    (folder.root / link).symlink_to(tmp_path / target)
    with pytest.raises(JobError) as refused:
        folder.check(link if named == "link" else named)
    assert refused.value.code == ErrorCode.DATA_NOT_ALLOWED


def test_a_link_in_a_circle_is_refused(folder):
    (folder.root / "circle").symlink_to("circle")
    with pytest.raises(JobError):
        folder.check("circle")


def test_without_a_folder_nothing_is_allowed():
    with pytest.raises(JobError, match="KRONOS_DATA_FOLDER"):
        DataFolder(None).check("b.csv")
