"""The scripts of deploy/terraform/scripts, with stand-ins for the clouds' programs."""

import re
import shutil
from pathlib import Path
from typing import Final

import hcl2
import pytest

from tests.deploy.modules import TERRAFORM
from tests.deploy.stand_ins import StandIns

SETTINGS: Final = """project='my-project'
region='europe-west4'
zone='europe-west4-a'
name='kronos'
use_gpu='true'
finetune_min='0'
registry='europe-west4-docker.pkg.dev/my-project/kronos'
build_account='projects/my-project/serviceAccounts/kronos-build'
build_bucket='my-project-kronos-build'
"""
DIGEST: Final = "sha256:" + "a" * 64
SCRIPTS: Final = ("build_images", "run_training", "smoke_test", "tear_down")
# What changes or costs something.
CHANGES: Final = (
    "builds submit",
    "compute ssh",
    "storage rsync",
    "storage rm",
    " apply",
    " destroy",
    "docker ",
    "delete",
)


class Clouds(StandIns):
    """A copy of the scripts, for a pool that was applied."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "gcloud", "terraform", "aws", "docker", "git")
        self.terraform = folder / "deploy" / "terraform"
        shutil.copytree(TERRAFORM / "scripts", self.terraform / "scripts")
        for cloud in ("google", "aws"):
            (self.terraform / cloud).mkdir()
        (folder / "candles").mkdir()
        self.config = folder / "finetune.yaml"
        self.config.write_text("predictor: {epochs: 1}\n")
        self.training = (
            "--data",
            str(folder / "candles"),
            "--config",
            str(self.config),
            "--name",
            "my-model",
        )
        self.reply("terraform", SETTINGS)
        self.reply("gcloud", DIGEST)
        self.reply("aws", DIGEST)
        self.reply("git", "v1")

    def start(self, script: str, *arguments: str) -> tuple[int, str]:
        required = self.training if script == "run_training" else ()
        done = self.run(self.terraform / "scripts" / f"{script}.sh", *required, *arguments)
        return done.returncode, done.stdout + done.stderr

    @property
    def changes(self) -> list[str]:
        return [call for call in self.calls.splitlines() if any(change in call for change in CHANGES)]


@pytest.fixture
def clouds(tmp_path: Path) -> Clouds:
    return Clouds(tmp_path)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_explains_itself_and_refuses_what_it_does_not_know(clouds: Clouds, script: str) -> None:
    status, output = clouds.start(script, "--help")
    assert (status, "--dry-run" in output, clouds.calls) == (0, True, "")
    assert "shellcheck" not in output
    status, output = clouds.start(script, "--everything")
    assert (status, clouds.changes) == (2, [])
    assert "no option --everything: see --help" in output


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_dry_run_shows_what_it_would_do_and_does_nothing(clouds: Clouds, script: str) -> None:
    status, output = clouds.start(script, "--dry-run")
    assert status == 0, output
    assert "would run: " in output
    assert output.count("would run: ") == len(re.findall("^would run: ", output, re.MULTILINE)), (
        "in a command"
    )
    assert clouds.changes == []
    assert not list(clouds.terraform.rglob("*.auto.tfvars"))


@pytest.mark.parametrize(
    ("cloud", "deletions"),
    [
        ("google", ["gs://my-project-kronos-models", "gs://my-project-kronos-data"]),
        ("aws", ["--repository-name kronos/api", "--repository-name kronos/worker-cuda"]),
    ],
)
def test_a_dry_run_shows_everything_that_tearing_down_all_deletes(
    clouds: Clouds, cloud: str, deletions: list[str]
) -> None:
    _, output = clouds.start("tear_down", "--cloud", cloud, "--all", "--dry-run")
    shown = [line for line in output.splitlines() if line.startswith("would run: ")]
    for deletion in (*deletions, " destroy"):
        assert any(f"{deletion} " in f"{line} " for line in shown), deletion
    assert clouds.changes == []


@pytest.mark.parametrize("script", ["build_images", "run_training", "tear_down"])
def test_nothing_that_costs_or_destroys_starts_without_consent(clouds: Clouds, script: str) -> None:
    status, output = clouds.start(script)
    assert status == 2
    assert "add --yes" in output
    assert clouds.changes == []


@pytest.mark.parametrize("script", SCRIPTS)
def test_without_an_applied_module_a_script_says_what_to_do(clouds: Clouds, script: str) -> None:
    clouds.fail("terraform")
    status, output = clouds.start(script)
    assert status == 2
    assert "run terraform init and apply there first" in output
    assert clouds.changes == []


@pytest.mark.parametrize("cloud", ["google", "aws"])
def test_built_images_are_named_by_digest_for_the_next_apply(clouds: Clouds, cloud: str) -> None:
    status, output = clouds.start("build_images", "--cloud", cloud, "--cpu-only", "--tag", "v1", "--yes")
    assert status == 0, output
    written = hcl2.loads((clouds.terraform / cloud / "images.auto.tfvars").read_text())["images"]
    registry = "europe-west4-docker.pkg.dev/my-project/kronos"
    assert {key: str(image).strip('"') for key, image in written.items() if not key.startswith("__")} == {
        "api": f"{registry}/api@{DIGEST}",
        "cpu": f"{registry}/worker-cpu@{DIGEST}",
    }
    if cloud == "aws":
        assert f"docker push {registry}/worker-cpu:v1" in clouds.calls
        assert "Dockerfile.cuda" not in clouds.calls


def test_training_uploads_the_candles_and_sends_the_config(clouds: Clouds) -> None:
    status, output = clouds.start("run_training", "--yes", "--device", "cpu")
    assert status == 0, output
    upload, job, followed = clouds.changes
    assert upload.endswith("gs://my-project-kronos-data/my-model")
    assert "finetune --config /dev/stdin --data my-model --device cpu  --enqueue my-model" in job
    assert "finetune --watch " in followed


def test_training_on_a_gpu_starts_a_machine_and_lets_it_end_afterwards(clouds: Clouds) -> None:
    status, output = clouds.start("run_training", "--yes")
    assert status == 0, output
    sizes = [call.split()[-1] for call in clouds.calls.splitlines() if "update-autoscaling" in call]
    assert sizes == ["1", "0"]
    assert "--device cuda --no-fallback --enqueue my-model" in clouds.calls


def test_tearing_down_keeps_models_and_jobs_unless_all_is_asked_for(clouds: Clouds) -> None:
    assert clouds.start("tear_down", "--yes")[0] == 0
    (change,) = clouds.changes
    assert change.endswith("apply -var running=false -auto-approve")
    assert clouds.start("tear_down", "--all", "--yes")[0] == 0
    assert clouds.changes[-1].endswith("destroy -auto-approve")
