"""The container files, as far as they can be checked without a container engine."""

import fnmatch
import importlib.util
import json
import re
import shlex
import stat
import subprocess
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest
import yaml
from pydantic import SecretStr

from api_stub.keys import SCOPES, read_keys
from kronos_cli.main import cli
from kronos_model.engine.native.compiling import TIMEOUT_S
from tests.all_settings import AllSettings
from tests.test_packages import run_without

ROOT = Path(__file__).resolve().parents[1]
COMPOSE_TEXT = (ROOT / "docker-compose.yml").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(COMPOSE_TEXT)
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = [name for name, service in SERVICES.items() if str(service["image"]).startswith("kronos-")]
WORKERS = ["worker-cpu", "worker-gpu", "finetune-cpu", "finetune-gpu"]
DOCKERFILES = ["Dockerfile", "Dockerfile.cuda", "Dockerfile.api"]
WITHOUT_TORCH = ["api", "flower"]
START_API_AND_FLOWER = """
import api_stub.main, api_stub.__main__, flower.app, kronos_cli.main
flower.app.Flower.start_http_server = lambda self: 5555
flower.app.Flower.start = lambda self: print("Flower is made")
kronos_cli.main.cli(["flower"])
"""
ELSEWHERE: dict[str, Any] = yaml.safe_load((ROOT / "deploy/compose.workers.yml").read_text())
SECRETS_SCRIPT = ROOT / "deploy" / "make-secrets.sh"


def settings_variables() -> set[str]:
    return {f"KRONOS_{name.upper()}" for name in AllSettings.model_fields}


def instructions(dockerfile: str) -> list[tuple[str, str]]:
    text = (ROOT / dockerfile).read_text().replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in lines]


def compose_schema() -> dict[str, Any]:
    """The published schema, which is older than Compose 2.24, with that release's long form of env_file."""
    schema: dict[str, Any] = json.loads((ROOT / "tests/data/compose_spec/compose-spec.json").read_text())
    fields = {"path": {"type": "string"}, "required": {"type": "boolean"}}
    file = {"type": "object", "additionalProperties": False, "required": ["path"], "properties": fields}
    service = schema["definitions"]["service"]["properties"]
    service["env_file"] = {"oneOf": [service["env_file"], {"type": "array", "items": file}]}
    return schema


def test_the_compose_file_follows_the_compose_specification() -> None:
    for document in (COMPOSE, ELSEWHERE):
        jsonschema.Draft201909Validator(compose_schema()).validate(document)


def command_named(name: str) -> click.Command:
    _, command, _ = cli.resolve_command(click.Context(cli), [name])
    assert command is not None
    return command


@pytest.mark.parametrize("name", OURS)
def test_every_command_and_option_exists(name: str) -> None:
    command, *arguments = SERVICES[name]["command"]
    if name in WITHOUT_TORCH:  # of that image the first word is the module
        assert importlib.util.find_spec(f"{command}.__main__") is not None
        if not arguments:
            return
        command, *arguments = arguments
    options = {option for parameter in command_named(command).params for option in parameter.opts}
    assert {argument for argument in arguments if argument.startswith("--")} <= options


@pytest.mark.parametrize("dockerfile", DOCKERFILES)
def test_images_start_a_command_that_exists(dockerfile: str) -> None:
    parts = dict(instructions(dockerfile))
    entry, command = json.loads(parts["ENTRYPOINT"]), json.loads(parts["CMD"])
    if dockerfile == "Dockerfile.api":
        assert entry[-1] == "-m"
        assert importlib.util.find_spec(f"{command[0]}.__main__") is not None
    else:
        assert entry[-2:] == ["-m", "kronos_cli"]
        assert command[0] in cli.commands
        probe = parts["HEALTHCHECK"].partition("CMD ")[2]
        assert json.loads(probe)[-1] in cli.commands


def test_worker_health_is_asked_of_a_command_that_exists() -> None:
    for name in WORKERS:
        *_, module, command = SERVICES[name]["healthcheck"]["test"]
        assert module == "kronos_cli"
        assert command in cli.commands
        # The model is downloaded, and kernels are compiled where the image has none for the CPU.
        assert seconds(SERVICES[name]["healthcheck"]["start_period"]) >= TIMEOUT_S + 300


@pytest.mark.parametrize("name", OURS)
def test_every_variable_is_a_setting(name: str) -> None:
    known = settings_variables() | {f"{variable}_FILE" for variable in settings_variables()}
    assert {key for key in SERVICES[name]["environment"] if key.startswith("KRONOS_")} <= known


def test_every_secret_comes_from_a_file_that_the_script_makes(tmp_path: Path) -> None:
    made = tmp_path / "secrets"
    said = subprocess.run([SECRETS_SCRIPT, made], capture_output=True, text=True, check=True).stdout
    assert {path.name for path in made.iterdir()} == {*COMPOSE["secrets"], "tls"}
    files = [path for path in made.iterdir() if path.is_file()]
    for name, secret in COMPOSE["secrets"].items():
        assert secret == {"file": f"./secrets/{name}"}
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    # Whichever user a container runs as reads them; the folder keeps others of this machine out.
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o444}
    texts = {path.name: path.read_text() for path in files}
    assert not any(text.endswith("\n") for text in texts.values()), "KEDA sends what it is given"
    assert texts["redis_url"] == f"redis://:{texts['redis_password']}@redis:6379/0"
    ours, scrapers = texts["api_keys"].splitlines()
    assert f"Bearer {ours}\n" in said
    assert f"redis://:{texts['redis_password']}@127.0.0.1:6379/0\n" in said
    assert scrapers == f"{texts['metrics_key']}:metrics"
    subprocess.run([SECRETS_SCRIPT, made], capture_output=True, check=True)
    assert {path.name: path.read_text() for path in files} == texts, "what is there stays"


def test_who_reads_metrics_is_let_in_whatever_keys_people_have(tmp_path: Path) -> None:
    keys = "a-key-of-16-chars,another-of-16-chars\na-third-of-16-chars\n"
    (tmp_path / "api_keys").write_text(keys)
    (tmp_path / "redis_url").write_text("rediss://kronos-worker:PASSWORD@redis.internal:6379/0")
    said = subprocess.run([SECRETS_SCRIPT, tmp_path], capture_output=True, text=True, check=True).stdout
    assert "6379" not in said, "the server is elsewhere"
    scrapers = (tmp_path / "metrics_key").read_text()
    settings = AllSettings.model_construct(api_keys=SecretStr((tmp_path / "api_keys").read_text()))
    everyone = dict.fromkeys((b"a-key-of-16-chars", b"another-of-16-chars", b"a-third-of-16-chars"), SCOPES)
    assert read_keys(settings) == everyone | {scrapers.encode(): {"metrics"}}


@pytest.mark.parametrize("name", SERVICES)
def test_each_service_is_given_the_secrets_that_it_names_and_no_others(name: str) -> None:
    service = SERVICES[name]
    text = json.dumps([service.get("environment"), service.get("command"), service.get("healthcheck")])
    text += (ROOT / "deploy/prometheus/prometheus.yml").read_text() if name == "prometheus" else ""
    assert set(re.findall(r"/run/secrets/(\w+)", text)) == set(service.get("secrets", []))
    for variable, value in (service.get("environment") or {}).items():
        is_secret = "PASSWORD" in variable or "KEYS" in variable or variable.startswith("KRONOS_REDIS_URL")
        if is_secret and value != "":
            assert variable.endswith("_FILE"), variable
            assert value.startswith("/run/secrets/")


def test_what_the_example_names_is_passed_on() -> None:
    assert not re.findall(r"\$\{(\w+):\?", COMPOSE_TEXT), "nothing must be set"
    example = (ROOT / ".env.example").read_text()
    named = set(re.findall(r"^#? ?(KRONOS_\w+)=", example, re.MULTILINE))
    passed_on = {
        key
        for name in OURS
        for key, value in SERVICES[name]["environment"].items()
        if value is None or str(value).startswith("$")
    }
    in_compose = passed_on | set(re.findall(r"\$\{(KRONOS_\w+):-", COMPOSE_TEXT))
    text = "containers read every setting from .env; what people often set is named in .env.example and, "
    assert named == in_compose, f"{text}without a value, under environment in docker-compose.yml"
    assert named <= settings_variables()


@pytest.mark.parametrize("name", OURS)
def test_settings_of_the_env_file_reach_every_service_and_break_none(name: str) -> None:
    service = SERVICES[name]
    assert service["env_file"] == [{"path": ".env", "required": False}]
    # Of both a setting and its file, a process would refuse to start. An empty variable counts as not set.
    environment = service["environment"]
    for variable, value in environment.items():
        if str(value).startswith("/run/secrets/"):
            assert environment[variable.removesuffix("_FILE")] == ""
    if name in WORKERS:
        assert environment["KRONOS_ROLE"] == name.partition("-")[0].replace("worker", "forecast")
    if name == "api":
        assert f"127.0.0.1:8000:{environment['KRONOS_API_PORT']}" in service["ports"]


def test_the_api_image_needs_no_more_than_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """The API and Flower start without the packages that its Dockerfile takes out of the worker's."""
    taken_out = re.search(
        r"grep -Ev '(.*?)' requirements.txt >api.txt", (ROOT / "Dockerfile.api").read_text()
    )
    assert taken_out is not None
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    blocked = {line.partition("=")[0].replace("-", "_") for line in lines if re.search(taken_out[1], line)}
    assert {"torch", "accelerate", "safetensors"} <= blocked
    monkeypatch.setenv("KRONOS_FLOWER_PASSWORD", "secret")
    done = run_without(tuple(blocked), START_API_AND_FLOWER)
    assert done.stdout == "Flower is made\n", done.stderr


@pytest.mark.parametrize("dockerfile", ["Dockerfile", "Dockerfile.cuda"])
def test_kernels_are_compiled_in_the_image_where_only_root_can_write(dockerfile: str) -> None:
    steps = instructions(dockerfile)
    final = max(index for index, (name, _) in enumerate(steps) if name == "FROM")
    (environment,) = (arguments for name, arguments in steps[final:] if name == "ENV")
    folder = dict(pair.split("=", 1) for pair in shlex.split(environment))["KRONOS_KERNEL_CACHE"]
    assert folder.startswith("/app/"), "what comes from the code's stage belongs to root"
    (warming,) = (arguments for name, arguments in steps[:final] if name == "RUN" and "--warm" in arguments)
    # Numba's entries are those of one Python, and of one place of the sources.
    for part in ("PYTHONPATH=/app ", f"KRONOS_KERNEL_CACHE={folder} ", "/opt/venv/bin/python -P -m "):
        assert part in warming
    assert f"chmod -R u=rwX,go=rX {folder};" in warming
    module = re.search(r"-m (\S+) --warm", warming)[1]  # type: ignore[index]
    assert importlib.util.find_spec(f"{module}.__main__") is not None
    assert not any("chown" in arguments for _, arguments in steps)


@pytest.mark.parametrize("dockerfile", DOCKERFILES)
def test_code_is_one_layer_behind_the_dependencies(dockerfile: str) -> None:
    steps = instructions(dockerfile)
    final = steps[max(index for index, (name, _) in enumerate(steps) if name == "FROM") :]
    assert [arguments for name, arguments in final if name == "COPY"] == [
        "--from=build /opt/venv /opt/venv",
        "--from=code /app /app",
    ]
    names = [name for name, _ in final]
    assert "RUN" not in names[names.index("COPY") :]


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
    for line in (
        "requirepass $(cat /run/secrets/redis_password)",
        "appendonly yes",
        "maxmemory-policy noeviction",
    ):
        assert line in script.splitlines()
    assert shlex.split(script.splitlines()[0])[:3] == ["exec", "redis-server", "-"]


def test_only_gpu_workers_ask_for_a_gpu_and_only_when_wanted() -> None:
    profiles = {name: SERVICES[name]["profiles"] for name in SERVICES if "profiles" in SERVICES[name]}
    assert profiles == {
        "worker-gpu": ["gpu"],
        "finetune-cpu": ["finetune"],
        "finetune-gpu": ["train-gpu"],
        "prometheus": ["watch"],
        "grafana": ["watch"],
        "dcgm-exporter": ["watch-gpu"],
    }
    with_gpu = {name for name in SERVICES if "deploy" in SERVICES[name]}
    assert with_gpu == {"worker-gpu", "finetune-gpu", "dcgm-exporter"}
    for name in ("worker-gpu", "finetune-gpu"):
        (device,) = SERVICES[name]["deploy"]["resources"]["reservations"]["devices"]
        assert device == {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}


def test_what_stops_is_given_the_time_it_needs() -> None:
    grace_s = {name: seconds(service["stop_grace_period"]) for name, service in SERVICES.items()}
    settings = AllSettings.model_construct()
    for name in WORKERS:
        # Training's own grace, and the steps before and after it.
        assert grace_s[name] >= settings.finetune_grace_s + 30
    assert min(grace_s["worker-cpu"], grace_s["worker-gpu"]) >= 600
    assert grace_s["api"] > settings.api_wait_s


def seconds(duration: str) -> int:
    number, unit = re.fullmatch(r"(\d+)(s|m)", duration).groups()  # type: ignore[union-attr]
    return int(number) * {"s": 1, "m": 60}[unit]


def test_uploads_go_where_finetuning_reads() -> None:
    folders = {
        name: [volume for volume in SERVICES[name]["volumes"] if "/var/lib/kronos/data" in volume]
        for name in ("api", "finetune-cpu", "finetune-gpu")
    }
    assert folders["finetune-cpu"] == folders["finetune-gpu"] == [f"{folders['api'][0]}:ro"]
    # A volume where nothing is set: of a folder that Docker makes on the host, root is the owner.
    (folder,) = folders["api"]
    assert split_volume(folder) == ["${KRONOS_DATA_FOLDER:-data}", "/var/lib/kronos/data"]
    assert "data" in COMPOSE["volumes"]


@pytest.mark.parametrize("name", OURS)
def test_folders_that_volumes_are_mounted_on_are_the_users_in_the_image(name: str) -> None:
    """A new volume gets the owner that its folder has in the image of the first container."""
    dockerfile = SERVICES[name]["build"]["dockerfile"]
    (setup,) = [
        arguments for step, arguments in instructions(dockerfile) if step == "RUN" and "useradd" in arguments
    ]
    owned = set(setup.partition("install -d -o kronos -g kronos ")[2].split())
    mounted = {split_volume(volume)[1] for volume in SERVICES[name]["volumes"] if volume[0] != "."}
    assert mounted <= owned


@pytest.mark.parametrize(
    ("name", "base"),
    [("worker-cpu", "worker-cpu"), ("worker-gpu-0", "worker-gpu"), ("worker-gpu-1", "worker-gpu")],
)
def test_a_machine_with_workers_only_runs_the_same_services(name: str, base: str) -> None:
    assert ELSEWHERE["services"].keys() == {"worker-cpu", "worker-gpu-0", "worker-gpu-1"}
    service = ELSEWHERE["services"][name]
    assert "depends_on" not in service, "there is no Redis on this machine"
    different = {"deploy", "depends_on", "profiles"}
    assert {key: value for key, value in service.items() if key != "deploy"} == {
        key: value for key, value in SERVICES[base].items() if key not in different
    }
    if name != "worker-cpu":
        assert service["deploy"]["resources"]["reservations"]["devices"] == [
            {"driver": "nvidia", "device_ids": [name.rpartition("-")[2]], "capabilities": ["gpu"]}
        ]
    assert ELSEWHERE["secrets"] == {"redis_url": COMPOSE["secrets"]["redis_url"]}
    assert ELSEWHERE["volumes"].keys() <= COMPOSE["volumes"].keys()


def test_prometheus_looks_for_every_worker() -> None:
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    names = {
        name
        for job in config["scrape_configs"]
        for source in job["dns_sd_configs"]
        for name in source["names"]
    }
    assert names == {*WORKERS, *ELSEWHERE["services"], "api", "dcgm-exporter"}


@pytest.mark.parametrize("name", OURS)
def test_files_for_tls_are_where_settings_find_them(name: str) -> None:
    assert "./secrets/tls:/etc/kronos:ro" in SERVICES[name]["volumes"]
    example = (ROOT / ".env.example").read_text()
    for part in ("CA", "CERTIFICATE", "KEY"):
        assert SERVICES[name]["environment"][f"KRONOS_REDIS_{part}_FILE"] is None
        assert f"# KRONOS_REDIS_{part}_FILE=\n" in example


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
    assert users == ["10001:10001"], "a number, which Kubernetes can check"
    (made,) = [arguments for instruction, arguments in instructions(dockerfile) if "useradd" in arguments]
    assert "groupadd --gid 10001 kronos" in made
    assert "useradd --uid 10001 --gid 10001 " in made


@pytest.mark.parametrize(
    ("service", "dockerfile"),
    [
        *((name, "Dockerfile.cuda" if name.endswith("gpu") else "Dockerfile") for name in WORKERS),
        *((name, "Dockerfile.api") for name in WITHOUT_TORCH),
    ],
)
def test_services_build_from_their_dockerfile(service: str, dockerfile: str) -> None:
    assert SERVICES[service]["build"] == {"context": ".", "dockerfile": dockerfile}
    environment = dict(
        pair.split("=", 1) for i, a in instructions(dockerfile) if i == "ENV" for pair in a.split()
    )
    if service in WORKERS:
        assert any(volume.endswith(environment["HF_HOME"]) for volume in SERVICES[service]["volumes"])
