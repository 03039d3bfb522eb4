"""The container files, as far as they can be checked without a container engine."""

import fnmatch
import json
import re
import shlex
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from worker.cli import cli
from worker.settings import Settings

ROOT = Path(__file__).resolve().parents[1]
COMPOSE_TEXT = (ROOT / "docker-compose.yml").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(COMPOSE_TEXT)
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = [name for name, service in SERVICES.items() if str(service["image"]).startswith("kronos-worker:")]
WORKERS = ["worker-cpu", "worker-gpu", "finetune-cpu", "finetune-gpu"]
DOCKERFILES = ["Dockerfile", "Dockerfile.cuda"]


def settings_variables() -> set[str]:
    return {f"KRONOS_{name.upper()}" for name in Settings.model_fields}


def instructions(dockerfile: str) -> list[tuple[str, str]]:
    text = (ROOT / dockerfile).read_text().replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in lines]


def test_the_compose_file_follows_the_compose_specification() -> None:
    schema = json.loads((ROOT / "tests/data/compose_spec/compose-spec.json").read_text())
    jsonschema.Draft201909Validator(schema).validate(COMPOSE)


def test_the_schema_refuses_what_is_not_compose() -> None:
    schema = json.loads((ROOT / "tests/data/compose_spec/compose-spec.json").read_text())
    broken = {"services": {"redis": {**SERVICES["redis"], "stop_grace": "1m"}}}
    with pytest.raises(jsonschema.ValidationError, match="stop_grace"):
        jsonschema.Draft201909Validator(schema).validate(broken)


@pytest.mark.parametrize("name", OURS)
def test_every_command_and_option_exists(name: str) -> None:
    command, *arguments = SERVICES[name]["command"]
    options = {option for parameter in cli.commands[command].params for option in parameter.opts}
    assert {argument for argument in arguments if argument.startswith("--")} <= options


@pytest.mark.parametrize("dockerfile", DOCKERFILES)
def test_images_start_a_command_that_exists(dockerfile: str) -> None:
    parts = dict(instructions(dockerfile))
    assert json.loads(parts["ENTRYPOINT"])[-2:] == ["-m", "worker"]
    assert json.loads(parts["CMD"])[0] in cli.commands


def test_worker_health_is_asked_of_a_command_that_exists() -> None:
    for name in WORKERS:
        *_, module, command = SERVICES[name]["healthcheck"]["test"]
        assert module == "worker"
        assert command in cli.commands


@pytest.mark.parametrize("name", OURS)
def test_every_variable_is_a_setting(name: str) -> None:
    assert {key for key in SERVICES[name]["environment"] if key.startswith("KRONOS_")} <= settings_variables()


def test_what_must_be_set_is_named_in_the_example() -> None:
    required = set(re.findall(r"\$\{(\w+):\?", COMPOSE_TEXT))
    assert required == {"KRONOS_REDIS_PASSWORD", "KRONOS_FLOWER_PASSWORD"}
    example = (ROOT / ".env.example").read_text()
    for variable in required:
        assert re.search(rf"^{variable}=$", example, re.MULTILINE), "named, and without a value to forget"
    mentioned = set(re.findall(r"^#? ?(KRONOS_\w+)=", example, re.MULTILINE))
    assert mentioned - {"KRONOS_REDIS_PASSWORD"} <= settings_variables()


@pytest.mark.parametrize("name", SERVICES)
def test_no_port_is_open_beyond_this_machine(name: str) -> None:
    assert "network_mode" not in SERVICES[name]
    for port in SERVICES[name].get("ports", []):
        assert port.startswith("127.0.0.1:")


@pytest.mark.parametrize("name", SERVICES)
def test_services_are_confined_and_watched(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["healthcheck"]["test"]
    assert "stop_grace_period" in service
    assert not service.get("user", "").startswith(("root", "0"))


def test_redis_keeps_what_it_accepted_and_asks_for_a_password() -> None:
    script = SERVICES["redis"]["command"][-1].replace("$$", "$")
    for line in ("requirepass $REDISCLI_AUTH", "appendonly yes", "maxmemory-policy noeviction"):
        assert line in script.splitlines()
    assert shlex.split(script.splitlines()[0])[:3] == ["exec", "redis-server", "-"]


def test_only_gpu_workers_ask_for_a_gpu_and_only_when_wanted() -> None:
    profiles = {name: SERVICES[name]["profiles"] for name in SERVICES if "profiles" in SERVICES[name]}
    assert profiles == {
        "worker-gpu": ["gpu"],
        "finetune-cpu": ["finetune"],
        "finetune-gpu": ["finetune-gpu"],
    }
    assert {name for name in SERVICES if "deploy" in SERVICES[name]} == {"worker-gpu", "finetune-gpu"}
    for name in ("worker-gpu", "finetune-gpu"):
        (device,) = SERVICES[name]["deploy"]["resources"]["reservations"]["devices"]
        assert device == {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}


@pytest.mark.parametrize("name", WORKERS)
def test_finetuning_workers_write_the_models_that_all_workers_read(name: str) -> None:
    service, is_finetuning = SERVICES[name], name.startswith("finetune")
    folders = {target: (source, rest) for source, target, *rest in map(split_volume, service["volumes"])}
    environment = service["environment"]
    source, options = folders[environment["KRONOS_MODEL_FOLDER"]]
    assert (source, options) == ("registered", [] if is_finetuning else ["ro"])
    assert ("--role" in service["command"]) == is_finetuning
    assert ("cpu_shares" in service) == is_finetuning
    if is_finetuning:
        assert folders[environment["KRONOS_DATA_FOLDER"]][1] == ["ro"]


def split_volume(volume: str) -> list[str]:
    """Source, target and options; a source may be a variable with a default."""
    return re.split(r":(?!-)", volume)


@pytest.mark.parametrize("dockerfile", DOCKERFILES)
def test_what_images_copy_exists_and_reaches_the_builder(dockerfile: str) -> None:
    patterns = [
        line for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] not in ("", "#")
    ]
    for instruction, arguments in instructions(dockerfile):
        if instruction == "COPY" and "--from=" not in arguments:
            for source in arguments.split()[:-1]:
                assert (ROOT / source).exists(), source
                verdicts = [p for p in patterns if fnmatch.fnmatch(source.removeprefix("./"), p.lstrip("!"))]
                assert verdicts, source
                assert verdicts[-1].startswith("!"), f"{source} is left out by .dockerignore"


@pytest.mark.parametrize("dockerfile", DOCKERFILES)
def test_images_do_not_run_as_root(dockerfile: str) -> None:
    users = [arguments for instruction, arguments in instructions(dockerfile) if instruction == "USER"]
    assert users == ["kronos"]


@pytest.mark.parametrize(
    ("service", "dockerfile"),
    [(name, "Dockerfile.cuda" if name.endswith("gpu") else "Dockerfile") for name in WORKERS],
)
def test_services_build_from_their_dockerfile(service: str, dockerfile: str) -> None:
    assert SERVICES[service]["build"] == {"context": ".", "dockerfile": dockerfile}
    environment = dict(
        pair.split("=", 1) for i, a in instructions(dockerfile) if i == "ENV" for pair in a.split()
    )
    assert any(volume.endswith(environment["HF_HOME"]) for volume in SERVICES[service]["volumes"])
