"""The number of threads for a worker's computations."""

import os
from pathlib import Path

import pytest

from kronos_model.devices import cores
from kronos_model.devices.cores import cgroup_quota, intra_op_threads, num_cores


@pytest.fixture
def make_cgroup(tmp_path: Path):
    """A process's cgroup file and a hierarchy with the given content of ``cpu.max`` by folder."""

    def make(own: str, **quotas: str) -> tuple[Path, Path]:
        root = tmp_path / "cgroup"
        for name, content in quotas.items():
            folder = root / name.replace("_", "/") if name != "root" else root
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "cpu.max").write_text(content)
        (tmp_path / "self").write_text(own)
        return tmp_path / "self", root

    return make


@pytest.mark.parametrize(
    ("own", "quotas", "expected"),
    [
        ("0::/\n", {"root": "150000 100000\n"}, 1.5),
        ("0::/\n", {"root": "max 100000\n"}, None),
        ("0::/a/b\n", {"a_b": "max 100000", "a": "200000 100000"}, 2.0),
        ("0::/a/b\n", {"a_b": "50000 100000", "a": "200000 100000"}, 0.5),
        ("0::/../../outer\n", {"root": "300000 100000"}, 3.0),
        ("1:cpu:/x\n0::/a\n", {"a": "400000 100000"}, 4.0),
        ("1:cpu:/x\n", {"root": "100000 100000"}, None),
        ("0::/\n", {"root": "nonsense"}, None),
        ("0::/\n", {"root": "100000 0"}, None),
        ("0::/gone\n", {}, None),
    ],
)
def test_the_smallest_quota_of_the_process_and_its_parents_counts(make_cgroup, own, quotas, expected):
    assert cgroup_quota(*make_cgroup(own, **quotas)) == expected


def test_without_cgroups_there_is_no_quota(tmp_path):
    assert cgroup_quota(tmp_path / "nothing", tmp_path) is None


@pytest.mark.parametrize(
    ("quota", "expected"), [("max", 6), ("400000", 4), ("390000", 3), ("50000", 1), ("1600000", 6)]
)
def test_cores_are_limited_by_affinity_and_quota(make_cgroup, monkeypatch, quota, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)), raising=False)
    assert num_cores(*make_cgroup("0::/", root=f"{quota} 100000")) == expected


@pytest.mark.parametrize(
    ("wanted", "num_processes", "environment", "expected"),
    [
        (None, 1, {}, 8),
        (None, 3, {}, 2),
        (None, 20, {}, 1),
        (None, 2, {"OMP_NUM_THREADS": ""}, 4),
        (None, 2, {"OMP_NUM_THREADS": "3"}, None),
        (5, 2, {"OMP_NUM_THREADS": "3"}, 5),
        (5, 2, {}, 5),
    ],
)
def test_threads_come_from_the_setting_then_openmp_then_the_cores(
    monkeypatch, wanted, num_processes, environment, expected
):
    monkeypatch.setattr(cores, "num_cores", lambda: 8)
    assert intra_op_threads(wanted, num_processes, environment) == expected
