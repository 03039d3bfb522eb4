"""The launcher: what it installs, from where, and when it starts over. Nothing is downloaded."""

import fcntl
import importlib.machinery
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from kronos_cli import installer
from kronos_cli.installer import SetupError
from tests.waiting import WAIT_S

ROOT = Path(__file__).resolve().parents[1]
TORCH = re.search(r"^torch==(\S+)", (ROOT / "requirements.txt").read_text(), re.MULTILINE)[1]  # type: ignore[index]

# Without any configuration pip, which takes a third of a second, has nothing to list.
PYTHON = f"""#!/bin/sh
[ "$*" = "-m pip config list" ] && [ "$(env | grep ^PIP_)" = PIP_CONFIG_FILE={os.devnull} ] && exit
exec {sys.executable} "$@"
"""


class FakeRun:
    """Records commands instead of running them. ``failures`` has the output of those that fail, by
    one of their words or the end of the last.

    ``venv`` makes what a real one would, with this process's Python behind it.
    """

    def __init__(self, failures: dict[str, str] | None = None) -> None:
        self.commands: list[list[str]] = []
        self.variables: dict[str, str] = {}
        self.failures = failures or {}

    def __call__(self, title: str, *command: str, **variables: str) -> None:
        self.commands.append(list(command))
        self.variables |= variables
        if "venv" in command:
            python = Path(command[-1], "bin", "python")
            shutil.rmtree(command[-1], ignore_errors=True)
            python.parent.mkdir(parents=True)
            python.write_text(PYTHON)
            python.chmod(0o755)
        for sign, output in self.failures.items():
            if sign in command or command[-1].endswith(sign):
                raise SetupError(output)

    @property
    def installations(self) -> list[str]:
        """The installing commands, but for that of uv itself."""
        return [
            " ".join(command) for command in self.commands if any("requirement" in word for word in command)
        ]

    @property
    def num_venvs(self) -> int:
        return sum("venv" in command for command in self.commands)


@dataclass
class Machine:
    """A machine without a network, on which a checkout's files lie."""

    venv: Path
    monkeypatch: pytest.MonkeyPatch

    def has(self, flavour: str) -> None:
        self.monkeypatch.setattr(installer, "torch_flavour", lambda: flavour)

    def install(self, *, dev: bool = False, failures: dict[str, str] | None = None) -> FakeRun:
        """Have it installed by commands that are recorded."""
        run = FakeRun(failures)
        self.monkeypatch.setattr(installer, "run", run)
        installer.ensure_installed(self.venv, dev)
        return run


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """One without a GPU, and without any configuration of pip."""
    for name in ("requirements.txt", "requirements-cuda.txt", "requirements-dev.txt"):
        shutil.copy(ROOT / name, tmp_path)
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    made = Machine(tmp_path / ".venv", monkeypatch)
    made.has("cpu")
    return made


@pytest.fixture
def launcher() -> Iterator[ModuleType]:
    loader = importlib.machinery.SourceFileLoader("kronos_launcher", str(ROOT / "kronos"))
    spec = importlib.util.spec_from_loader("kronos_launcher", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    before = list(sys.path)
    loader.exec_module(module)
    yield module
    sys.path[:] = before


@pytest.mark.parametrize(
    ("platform", "files", "flavour"),
    [
        ("linux", [], "cpu"),
        ("linux", ["/dev/nvidia0"], "cuda"),
        ("linux", ["/proc/driver/nvidia"], "cuda"),
        ("darwin", [], "default"),
    ],
)
def test_the_build_of_torch_follows_the_machine(
    platform: str, files: list[str], flavour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(os.path, "exists", files.__contains__)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert installer.torch_flavour() == flavour


def test_without_a_gpu_uv_installs_the_cpu_build(machine: Machine) -> None:
    (command,) = machine.install().installations
    assert " -m uv pip install " in command
    assert command.endswith(f"requirements.txt torch=={TORCH}+cpu")
    assert "requirements-dev" not in command
    assert "requirements-cuda" not in command


def test_a_cpu_build_that_the_configured_sources_lack_comes_from_pytorchs_index(machine: Machine) -> None:
    _, from_cpu_index = machine.install(failures={"+cpu": "No solution found"}).installations
    assert from_cpu_index.endswith(f"torch=={TORCH}+cpu --torch-backend=cpu")


@pytest.mark.parametrize("cause", ["No matching distribution found for torch", "connection broken"])
def test_only_if_no_source_has_a_cpu_build_the_default_one_is_taken(machine: Machine, cause: str) -> None:
    """It has several GB, which a disturbed network must not bring."""
    none = "No matching distribution"
    failures = {"uv": "Failed to fetch", installer.CPU_INDEX: cause, "+cpu": none}
    if cause == "connection broken":
        with pytest.raises(SetupError, match=cause):
            machine.install(failures=failures)
    else:
        *_, by_pip, default = machine.install(failures=failures).installations
        assert by_pip.endswith(f"torch=={TORCH}+cpu --retries=0 --extra-index-url={installer.CPU_INDEX}")
        assert "torch==" not in default


def test_where_an_index_has_no_uv_pip_installs(machine: Machine) -> None:
    machine.has("default")
    run = machine.install(failures={"uv": "No module named uv"})
    assert " -m pip install " in run.installations[-1]


def test_with_an_nvidia_driver_the_cuda_requirements_are_installed(machine: Machine) -> None:
    machine.has("cuda")
    (command,) = machine.install().installations
    assert "requirements-cuda.txt" in command
    assert "+cpu" not in command


def test_pips_sources_are_those_of_uv(machine: Machine, tmp_path: Path) -> None:
    """The environment goes before a file, and in a file [install] before [global]."""
    config = tmp_path / "pip.conf"
    config.write_text(
        "[global]\nindex-url = https://in.the/file\nextra-index-url =\n  file:///one/simple\n  file:///two/simple\n"
        "find-links = /general\n[install]\nfind-links = /wheels /more\n[download]\nproxy = http://not:1\n"
    )
    for name, value in {
        "PIP_CONFIG_FILE": str(config),
        "PIP_INDEX_URL": "https://name:password@in.the/environment",
        "PIP_CONSTRAINT": "/constraints.txt",
        "PIP_CERT": "/bundle.pem",
    }.items():
        machine.monkeypatch.setenv(name, value)
    run = machine.install()
    assert run.variables == {
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_DEFAULT_INDEX": "https://name:password@in.the/environment",
        "UV_EXTRA_INDEX_URL": "file:///one/simple file:///two/simple",
        "UV_FIND_LINKS": "/wheels,/more",
        "UV_CONSTRAINT": "/constraints.txt",
        "SSL_CERT_FILE": "/bundle.pem",
    }
    assert "--no-index" not in run.installations[0]
    assert "password" not in str(run.commands)


def test_without_an_index_uv_asks_none(machine: Machine) -> None:
    machine.monkeypatch.setenv("PIP_NO_INDEX", "true")
    assert " --no-index " in machine.install().installations[0]


@pytest.mark.skipif(importlib.util.find_spec("uv") is None, reason="needs uv, which ./kronos setup installs")
@pytest.mark.usefixtures("machine")
def test_uv_finds_packages_where_pip_is_configured_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real uv reads the variables as meant: a folder of wheels, in place of an index."""
    about = "torch-9.0+cpu.dist-info"
    (tmp_path / "wheels").mkdir()
    with zipfile.ZipFile(tmp_path / "wheels" / "torch-9.0+cpu-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: torch\nVersion: 9.0+cpu\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")
    (tmp_path / "constraints.txt").write_text("torch<9.1\n")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", f"{tmp_path} {tmp_path / 'wheels'}")
    monkeypatch.setenv("PIP_CONSTRAINT", str(tmp_path / "constraints.txt"))
    flags, variables = installer.uv_settings(sys.executable)
    uv = [sys.executable, "-m", "uv", "pip", "install", "--no-config", "--no-cache", *flags]
    installer.run("uv", *uv, "--target", str(tmp_path / "to"), "torch==9.0", **variables)
    assert (tmp_path / "to" / about).is_dir()
    with pytest.raises(SetupError, match=installer.NOT_FOUND):
        installer.run("uv", *uv, "--target", str(tmp_path / "to"), "torch==9.1", **variables)


def test_what_is_installed_is_not_installed_again(machine: Machine) -> None:
    machine.install()
    assert machine.install().commands == []
    again = machine.install(dev=True)
    assert "requirements-dev.txt" in again.installations[0]
    assert again.num_venvs == 0
    assert machine.install().commands == []
    assert machine.install(dev=True).commands == []


def test_a_cuda_build_serves_when_the_driver_is_away(machine: Machine) -> None:
    machine.has("cuda")
    machine.install()
    machine.has("cpu")
    assert machine.install().commands == []
    machine.has("default")
    assert machine.install().installations


def test_a_cpu_build_is_replaced_when_a_driver_comes(machine: Machine) -> None:
    machine.install()
    machine.has("cuda")
    assert "requirements-cuda.txt" in machine.install().installations[0]


@pytest.mark.parametrize("file", ["requirements.txt", "requirements-dev.txt"])
def test_changed_requirements_are_installed(machine: Machine, tmp_path: Path, file: str) -> None:
    machine.install(dev=True)
    with (tmp_path / file).open("a") as requirements:
        requirements.write("attrs==26.1.0\n")
    again = machine.install(dev=True)
    assert again.installations
    assert again.num_venvs == 0


def test_another_interpreter_behind_the_environment_is_noticed(machine: Machine) -> None:
    machine.install()
    python = machine.venv / "bin" / "python"
    python.unlink()
    python.symlink_to("/bin/sh")
    assert machine.install().num_venvs == 1


def test_an_interrupted_installation_starts_over(machine: Machine) -> None:
    class Killed(BaseException):
        pass

    def interrupted(title: str, *command: str, **variables: str) -> None:
        if "pip" in command:
            raise Killed
        FakeRun()(title, *command)

    machine.monkeypatch.setattr(installer, "run", interrupted)
    with pytest.raises(Killed):
        installer.ensure_installed(machine.venv, dev=False)
    again = machine.install()
    assert again.num_venvs == 1
    assert machine.install().commands == []


def test_a_failed_installation_keeps_what_is_there(machine: Machine) -> None:
    machine.install()
    with pytest.raises(SetupError):
        machine.install(dev=True, failures={"+cpu": "No space left on device"})
    assert machine.install().commands == []
    assert machine.install(dev=True).num_venvs == 0


def test_a_folder_that_cannot_be_written_is_named(machine: Machine) -> None:
    machine.monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(SetupError, match=re.escape(str(machine.venv.parent))):
        installer.ensure_installed(machine.venv, dev=False)


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("OSError: [Errno 28] No space left on device", "Make room on this disk"),
        ("error: Permission denied (os error 13)", "Make this folder writable"),
        ("WARNING: connection broken by NewConnectionError", "PIP_INDEX_URL"),
        ("error: Failed to fetch: https://index/simple", "PIP_INDEX_URL"),
        ("error: No solution found when resolving dependencies", "3.11 to 3.13"),
        ("ensurepip is not available", "apt install python3-venv"),
        ("anything else", "Correct the cause"),
    ],
)
def test_a_failure_shows_the_last_lines_and_the_remedy(line: str, remedy: str) -> None:
    script = "import sys; print('Downloading a'); print(sys.argv[1]); sys.exit(3)"
    with pytest.raises(SetupError, match=re.escape(line)) as failure:
        installer.run("the step", sys.executable, "-c", script, line)
    assert remedy in str(failure.value).splitlines()[-1]


def test_the_main_lines_of_a_command_are_shown(capfd: pytest.CaptureFixture[str]) -> None:
    script = "import os; print('Downloading torch'); print(' + torch'); print('Installed', os.environ['X'])"
    installer.run("the step", sys.executable, "-c", script, X="it")
    assert capfd.readouterr() == ("", "  the step\n    Downloading torch\n    Installed it\n")


LAUNCH = """
import sys
from pathlib import Path
from kronos_cli import installer
installer.install = lambda venv, dev: print("in")
installer.ensure_installed(Path(sys.argv[1], ".venv"), False)
"""


def test_a_second_launcher_waits_for_the_first(machine: Machine) -> None:
    folder = machine.venv.parent
    lock = os.open(folder, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    pipe = subprocess.PIPE
    second = subprocess.Popen(
        [sys.executable, "-c", LAUNCH, str(folder)], cwd=ROOT, text=True, stdout=pipe, stderr=pipe
    )
    try:
        assert second.stderr is not None
        assert "waiting for it" in second.stderr.readline()
        assert second.poll() is None
    finally:
        os.close(lock)
    assert second.communicate(timeout=WAIT_S)[0] == "in\n"


def test_help_names_every_command_and_installs_nothing(launcher: ModuleType) -> None:
    from kronos_cli.main import cli

    done = subprocess.run(
        [sys.executable, "-S", str(ROOT / "kronos"), "--help"], capture_output=True, text=True, check=True
    )
    assert set(launcher.COMMANDS) == {*cli.commands, "setup", "test"}
    for command in launcher.COMMANDS:
        assert f"\n  {command} " in done.stdout


def test_a_misspelt_command_is_refused_before_anything_is_installed(
    launcher: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(installer, "ensure_installed", lambda *_: pytest.fail("installed"))
    assert launcher.main(["dmeo"]) == 2
    assert "did you mean demo?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "dev", "target"),
    [
        (["demo", "--seed", "3"], False, ["-P", "-m", "kronos_cli", "demo", "--seed", "3"]),
        (["worker", "--dev"], False, ["-P", "-m", "kronos_cli", "worker", "--dev"]),
        (["test", "-x"], True, ["-m", "pytest", "-x"]),
        (["test", "--gpu"], True, ["-m", "pytest", "--gpu"]),
        (
            ["test", "--faults"],
            True,
            ["-m", "pytest", "-n", "6", "-m", "faults or at_length", "--faults"],
        ),
    ],
)
def test_commands_are_handed_over_to_the_environments_python(
    launcher: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: list[str],
    dev: bool,
    target: list[str],
) -> None:
    seen: dict[str, object] = {}
    monkeypatch.setattr(launcher, "PARALLEL", ["-n", "6"])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setattr(installer, "ensure_installed", lambda venv, dev: seen.update(dev=dev))
    monkeypatch.setattr(os, "execv", lambda path, argv: seen.update(path=path, argv=argv, cwd=Path.cwd()))
    launcher.main(arguments)
    python = ROOT / ".venv" / "bin" / "python"
    assert seen["dev"] == dev
    assert (seen["path"], seen["argv"]) == (python, [str(python), *target])
    assert seen["cwd"] == (ROOT if arguments[0] == "test" else tmp_path)
    assert os.environ["PYTHONPATH"] == os.pathsep.join([str(ROOT), "/elsewhere"])
    assert "PYTHONDONTWRITEBYTECODE" not in os.environ


def test_without_a_gpu_its_tests_end_with_one_sentence() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--gpu"],
        cwd=ROOT,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert done.stderr.strip().startswith("ERROR: there is no GPU to test on: ")
    assert done.stderr.strip().count("\n") == 0


def test_the_launcher_needs_no_syntax_that_an_old_python_lacks() -> None:
    import ast

    ast.parse((ROOT / "kronos").read_text(), feature_version=(3, 6))
