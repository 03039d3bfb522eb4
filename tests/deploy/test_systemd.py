"""The units in deploy/systemd, for machines without containers."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from kronos_client.redis.queues import ROLE_QUEUES
from tests.all_settings import AllSettings
from tests.test_compose import command_named

FOLDER = Path(__file__).resolve().parents[2] / "deploy/systemd"
COMMON = FOLDER / "kronos-.service.d/common.conf"
UNITS = sorted(FOLDER.glob("*.service"))
by_unit = pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)


def values(unit: Path, name: str) -> list[str]:
    """What a unit sets a name to, after what all units do."""
    return re.findall(rf"^{name}=(.*)$", COMMON.read_text() + unit.read_text(), re.MULTILINE)


@by_unit
def test_a_unit_starts_a_command_that_exists(unit: Path) -> None:
    (command,) = values(unit, "ExecStart")
    _, name, *arguments = shlex.split(command)
    options = {option for parameter in command_named(name).params for option in parameter.opts}
    assert {argument for argument in arguments if argument.startswith("--")} <= options
    if name == "worker":
        assert arguments[:2] == ["--role", unit.stem.removeprefix("kronos-").removesuffix("@")]
        assert arguments[1] in ROLE_QUEUES


@by_unit
def test_a_unit_has_settings_that_exist_and_the_secrets_that_it_names(unit: Path) -> None:
    variables = dict(value.split("=", 1) for value in values(unit, "Environment"))
    known = {f"KRONOS_{field.upper()}" for field in AllSettings.model_fields}
    assert {name.removesuffix("_FILE") for name in variables if name.startswith("KRONOS_")} <= known
    secrets = dict(value.split(":") for value in values(unit, "LoadCredential"))
    assert secrets == {name: f"/etc/kronos/secrets/{name}" for name in secrets}
    assert {f"%d/{name}" for name in secrets} == {v for v in variables.values() if v.startswith("%d/")}


@by_unit
def test_a_unit_is_restarted_confined_and_given_time_to_end(unit: Path) -> None:
    settings = AllSettings.model_construct()
    least_s = {
        "kronos-forecast@": 600,
        "kronos-finetune@": settings.finetune_grace_s + 30,
        "kronos-api": settings.api_wait_s + 5,
        "kronos-flower": 10,
    }
    (seconds,) = values(unit, "TimeoutStopSec")
    assert int(seconds) >= least_s[unit.stem]
    once = {"Restart": "on-failure", "KillMode": "mixed", "User": "kronos", "NoNewPrivileges": "yes",
            "ProtectSystem": "strict", "CapabilityBoundingSet": ""}  # fmt: skip
    assert {name: values(unit, name) for name in once} == {name: [value] for name, value in once.items()}


def test_systemd_finds_nothing_wrong(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed: apt-get install systemd")
    folder = shutil.copytree(FOLDER, tmp_path / "units")
    units = sorted(folder.glob("*.service"))
    for unit in units:  # it looks for the program
        unit.write_text(
            re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", unit.read_text(), flags=re.MULTILINE)
        )
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *units],
        env={"SYSTEMD_UNIT_PATH": f"{folder}:"}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    # Units of the machine itself may have faults of their own.
    assert not [line for line in done.stderr.splitlines() if "kronos" in line]
