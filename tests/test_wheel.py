"""The wheel that ``pip install .`` makes: what is in it, and that it enqueues with what it asks for alone."""

import shutil
import subprocess
import sys
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version
from redis import Redis

from kronos_cli.stack.local_redis import LocalRedis
from kronos_client.contract.names import CPU_QUEUE
from tests.integration.test_other_clients import link_distributions

ROOT = Path(__file__).parents[1]
PACKAGES = ("kronos_model", "kronos_client", "worker", "kronos_cli", "api_stub")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
NO_SOURCES = shutil.ignore_patterns("__pycache__", "*.pyc")
TIMEOUT_S = 120

BUILD = """
import sys
from setuptools.build_meta import build_wheel

build_wheel(sys.argv[1])
"""

ENQUEUE = """
import importlib.util, sys
import worker
from kronos_model.bars.synthetic import candles
from kronos_client.client import ForecastClient

assert worker.__file__.startswith(sys.argv[2]), worker.__file__
for absent in ("torch", "pandas", "fastapi"):
    assert importlib.util.find_spec(absent) is None, absent
with ForecastClient(sys.argv[1]) as client:
    print(client.submit(candles(seed=1, bars=60).as_dict(), pred_len=5, job_id="by-wheel").queue)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Built as pip builds it, from a copy: the backend leaves files among the sources."""
    (needed,) = map(Requirement, PROJECT["build-system"]["requires"])
    try:
        found = Version(version(needed.name))
    except PackageNotFoundError:
        found = Version("0")
    if found not in needed.specifier:
        pytest.skip(f"{needed} is not installed: pip install '{needed}'")
    folder = tmp_path_factory.mktemp("wheel")
    sources, built = folder / "sources", folder / "built"
    built.mkdir()
    for package in PACKAGES:
        shutil.copytree(ROOT / package, sources / package, ignore=NO_SOURCES)
    # What is not to be in it.
    shutil.copytree(ROOT / "tests" / "kronos_model", sources / "tests", ignore=NO_SOURCES)
    for name in ("pyproject.toml", "LICENSE", "NOTICE", PROJECT["project"]["readme"]):
        shutil.copy(ROOT / name, sources)
    ran = subprocess.run(
        [sys.executable, "-c", BUILD, str(built)],
        cwd=sources,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (path,) = built.glob("*.whl")
    return zipfile.ZipFile(path)


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return Parser().parsestr(wheel.read(name).decode())


def test_everything_of_the_packages_is_in_it_and_nothing_else(wheel):
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    sources = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert packed == sources


def test_what_it_asks_for_is_the_clients_and_not_torch(metadata):
    requirements = [Requirement(text) for text in metadata.get_all("Requires-Dist", [])]
    always = {one.name for one in requirements if one.marker is None}
    assert always == {Requirement(text).name for text in PROJECT["project"]["dependencies"]}
    assert not always & {"torch", "pandas", "fastapi", "flower"}
    extras = PROJECT["project"]["optional-dependencies"]
    assert set(metadata.get_all("Provides-Extra", [])) == extras.keys()
    for extra, texts in extras.items():
        asked = {one.name for one in requirements if one.marker and one.marker.evaluate({"extra": extra})}
        named = [Requirement(text) for text in texts]
        assert asked == {one.name for one in named if one.marker is None or one.marker.evaluate()}
    assert "torch" in {Requirement(text).name for text in extras["worker"]}
    assert "torch" not in {Requirement(text).name for text in (*extras["api"], *extras["cli"])}
    assert set(extras["cli"]) <= set(extras["worker"])


def test_it_carries_its_licence_and_the_notices_of_others(wheel, metadata):
    assert metadata["License-Expression"] == "MIT"
    for name in ("LICENSE", "NOTICE"):
        (path,) = (path for path in wheel.namelist() if path.endswith(f".dist-info/licenses/{name}"))
        assert wheel.read(path) == (ROOT / name).read_bytes()


def test_what_it_holds_enqueues_with_what_it_asks_for_alone(wheel, metadata, tmp_path):
    asked = [Requirement(text) for text in metadata.get_all("Requires-Dist", [])]
    site = link_distributions(tmp_path, *(str(one) for one in asked if one.marker is None))
    wheel.extractall(site)
    with LocalRedis() as server, Redis.from_url(server.url) as redis:
        ran = subprocess.run(
            [sys.executable, "-S", "-c", ENQUEUE, server.url, str(site)],
            env={"PYTHONPATH": str(site)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert ran.stdout == f"{CPU_QUEUE}\n", ran.stderr
        assert redis.exists("kronos:job:by-wheel")
