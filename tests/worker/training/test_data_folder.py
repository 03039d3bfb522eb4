"""What a job may name in the data folder, and that nothing leads out of it."""

import pytest

from kronos_client.contract.errors import ErrorCode, JobError
from worker.training.job_inputs import check_path


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "data"
    (root / "asia" / "tokyo").mkdir(parents=True)
    (root / "asia" / "tokyo" / "a.csv").write_text("")
    (root / "b.csv").write_text("")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.csv").write_text("")
    return root


@pytest.mark.parametrize("path", ["b.csv", "asia", "asia/tokyo/a.csv", "."])
def test_paths_inside_are_allowed(folder, path):
    assert check_path(folder, path) == (folder / path).resolve()


def test_links_that_stay_inside_are_allowed(folder):
    (folder / "same.csv").symlink_to("b.csv")
    (folder / "same").symlink_to(folder / "asia")
    assert check_path(folder, "same.csv") == folder / "b.csv"
    assert check_path(folder, "same") == folder / "asia"
    assert check_path(folder, ".") == folder


def test_a_data_folder_that_is_a_link_itself_is_allowed(folder, tmp_path):
    (tmp_path / "link").symlink_to(folder)
    assert check_path(tmp_path / "link", "b.csv") == folder / "b.csv"


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
    (folder / link).symlink_to(tmp_path / target)
    with pytest.raises(JobError) as refused:
        check_path(folder, link if named == "link" else named)
    assert refused.value.code == ErrorCode.DATA_NOT_ALLOWED


def test_a_link_in_a_circle_is_refused(folder):
    (folder / "circle").symlink_to("circle")
    with pytest.raises(JobError):
        check_path(folder, "circle")


def test_without_a_folder_nothing_is_allowed():
    with pytest.raises(JobError, match="KRONOS_DATA_FOLDER"):
        check_path(None, "b.csv")
