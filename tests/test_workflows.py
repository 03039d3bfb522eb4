"""GitHub's workflows name what exists here. `make lint` checks their syntax, types and permissions."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS: dict[str, dict[str, Any]] = {
    path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / ".github/workflows").glob("*.yml")
}
STEPS = [
    pytest.param(step, id=f"{name}-{job_name}-{number}")
    for name, workflow in WORKFLOWS.items()
    for job_name, job in workflow["jobs"].items()
    for number, step in enumerate(job.get("steps", []))
]


@pytest.mark.parametrize("step", STEPS)
def test_a_step_runs_what_exists(step: dict[str, Any]) -> None:
    script = step.get("run", "")
    targets = set(re.findall(r"^([\w.-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for command in re.findall(r"^make ([a-z -]+)", script, re.MULTILINE):
        assert set(command.split()) <= targets
    for program in re.findall(r"^(\.[\w/]+)", script, re.MULTILINE):
        assert (ROOT / program).is_file()


@pytest.mark.parametrize("step", STEPS)
def test_an_action_is_named_by_its_commit(step: dict[str, Any]) -> None:
    assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", step.get("uses", "a/b@" + 40 * "0"))


def test_a_release_publishes_every_image_and_what_ci_made() -> None:
    jobs, made = WORKFLOWS["release"]["jobs"], WORKFLOWS["ci"]["jobs"]
    images = jobs["images"]["strategy"]["matrix"]["include"]
    assert {one["dockerfile"] for one in images} == {one.name for one in ROOT.glob("Dockerfile*")}
    built = {f"{one['name']}{one['suffix']} {one['arch']}" for one in images}
    joined = [
        f"{one['name']}{one['suffix']} {arch}"
        for one in jobs["manifests"]["strategy"]["matrix"]["include"]
        for arch in one["archs"].split()
    ]
    assert sorted(joined) == sorted(built)
    uploaded = [step["with"] for step in made["wheel"]["steps"] if "upload-artifact" in step.get("uses", "")]
    downloaded = [step["with"] for step in jobs["pypi"]["steps"] if "download-artifact" in step["uses"]]
    assert downloaded == uploaded
    (attested,) = [step["with"] for step in jobs["pypi"]["steps"] if "actions/attest" in step["uses"]]
    assert attested["sbom-path"] in (ROOT / ".ci/release").read_text()
    assert Path(attested["sbom-path"]).parent in [Path(one["path"]) for one in downloaded]
    (site,) = [
        step["with"]["path"] for step in made["docs"]["steps"] if "upload-pages" in step.get("uses", "")
    ]
    assert re.search(rf"^site_dir: {site}$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert all("ci" in job["needs"] for name, job in jobs.items() if name != "ci")
