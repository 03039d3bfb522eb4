"""Scripts are files. Each is complete once its includes are put in."""

from pathlib import Path

import pytest

from kronos_client.redis.scripts import INCLUDE, SCRIPTS, read_script
from worker.broker.deliveries import SCRIPTS as WORKER_SCRIPTS

FILES = sorted([*SCRIPTS.glob("*.lua"), *WORKER_SCRIPTS.glob("*.lua")])


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parts[-3]}-{path.stem}")
def test_redis_reads_each_script(redis, path):
    script = read_script(path.stem, path.parent)
    assert redis.script_load(script)
    assert not INCLUDE.search(script)


def test_a_script_includes_one_of_its_folder_before_a_shared_one(tmp_path: Path):
    (tmp_path / "one.lua").write_text("-- include: now\n-- include: own\nreturn 1\n")
    (tmp_path / "own.lua").write_text("local own = 2\n")
    shared = (SCRIPTS / "now.lua").read_text()
    assert read_script("one", tmp_path) == f"{shared}\nlocal own = 2\n\nreturn 1\n"
