"""The launcher: what it decides to install, from where, and when it starts anew. Nothing is downloaded."""

import importlib.machinery
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from kronos_cli import installer
from kronos_cli.installer import Checkout, SetupError
from tests.processes import await_end

ROOT = Path(__file__).resolve().parents[1]
TORCH = re.search(r"^torch==(\S+)", (ROOT / "requirements.txt").read_text(), re.MULTILINE)[1]  # type: ignore[index]


class FakeRunner:
    """Records commands; ``venv`` makes the folder that a real one would; fails where told to."""

    def __init__(self, failures: dict[str, list[str]] | None = None) -> None:
        self.commands: list[list[str]] = []
        self.failures = failures or {}

    def __call__(self, title: str, command: list[str]) -> tuple[int, list[str]]:
        self.commands.append(command)
        if "venv" in command:
            folder = Path(command[-1])
            shutil.rmtree(folder, ignore_errors=True)
            (folder / "bin").mkdir(parents=True)
            (folder / "bin" / "python").symlink_to(sys.executable)
        for sign, output in self.failures.items():
            if sign in command:
                return 1, output
        return 0, []

    @property
    def pip_runs(self) -> list[list[str]]:
        return [command for command in self.commands if "pip" in command]

    @property
    def num_venvs(self) -> int:
        return sum("venv" in command for command in self.commands)


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    for name in ("requirements.txt", "requirements-cuda.txt", "requirements-dev.txt"):
        shutil.copy(ROOT / name, tmp_path)
    return Checkout(tmp_path)


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
    ("platform", "nvidia", "flavour"),
    [("linux", False, "cpu"), ("linux", True, "cuda"), ("darwin", False, "default")],
)
def test_the_build_of_torch_follows_the_machine(platform: str, nvidia: bool, flavour: str) -> None:
    assert installer.torch_flavour(platform, nvidia) == flavour


def test_without_a_gpu_torch_comes_first_and_from_the_cpu_index(checkout: Checkout) -> None:
    run = FakeRunner()
    installer.install(checkout, "cpu", ["base"], run)
    torch, rest = run.pip_runs
    assert torch[torch.index("--index-url") + 1] == installer.CPU_INDEX
    assert torch[-1] == f"torch=={TORCH}+cpu"
    assert "--no-deps" in torch
    assert rest[-2:] == ["-r", str(checkout.root / "requirements.txt")]
    assert "--index-url" not in rest


def test_an_unreachable_cpu_index_leads_to_the_default_one_and_says_so(
    checkout: Checkout, capsys: pytest.CaptureFixture[str]
) -> None:
    run = FakeRunner({f"torch=={TORCH}+cpu": ["ERROR: No matching distribution found for torch"]})
    installer.install(checkout, "cpu", ["base"], run)
    assert run.pip_runs[1][-1] == f"torch=={TORCH}"
    assert "--index-url" not in run.pip_runs[1]
    assert installer.CPU_INDEX in capsys.readouterr().err
    assert installer.is_current(checkout, "base", "cpu")


def test_a_full_disk_does_not_lead_to_the_default_index(checkout: Checkout) -> None:
    run = FakeRunner({f"torch=={TORCH}+cpu": ["ERROR: [Errno 28] No space left on device"]})
    with pytest.raises(SetupError, match="Make room on this disk"):
        installer.install(checkout, "cpu", ["base"], run)
    assert len(run.pip_runs) == 1


def test_bytecode_is_made_once_at_the_end(checkout: Checkout) -> None:
    run = FakeRunner()
    installer.install(checkout, "cpu", ["base", "dev"], run)
    assert all("--no-compile" in command for command in run.pip_runs)
    assert [any("compileall" in word for word in command) for command in run.commands] == [False] * 4 + [True]


def test_bytecode_is_made_of_what_can_be_compiled(checkout: Checkout) -> None:
    FakeRunner()("", ["venv", str(checkout.venv)])
    packages = checkout.venv / "lib" / "site-packages"
    packages.mkdir(parents=True)
    for name, text in {"good.py": "x = 1", "template.py": "x = {{x}"}.items():
        (packages / name).write_text(text)
    codes: list[int] = []

    def run(title: str, command: list[str]) -> tuple[int, list[str]]:
        code, tail = installer.run_visibly(title, command)
        codes.append(code)
        return code, tail

    installer.compile_packages(checkout, run)
    assert codes == [0]
    assert [path.name.partition(".")[0] for path in packages.rglob("*.pyc")] == ["good"]


def test_what_a_step_left_running_is_ended_with_it() -> None:
    """It would hold the lock, and the pipe that this process reads to its end."""
    script = "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', sys.argv[1]]).pid)"
    began = time.monotonic()
    code, tail = installer.run_visibly("", [sys.executable, "-c", script, "import time; time.sleep(60)"])
    assert code == 0
    assert time.monotonic() - began < 30
    assert await_end(int(tail[0]))


def test_packages_that_cannot_all_be_compiled_are_installed_all_the_same(checkout: Checkout) -> None:
    installer.install(checkout, "cpu", ["base"], FakeRunner({"-c": []}))
    assert installer.is_current(checkout, "base", "cpu")
    assert not checkout.unfinished.exists()


def test_with_an_nvidia_driver_the_cuda_requirements_are_installed(checkout: Checkout) -> None:
    run = FakeRunner()
    installer.install(checkout, "cuda", ["base"], run)
    assert [command[-1] for command in run.pip_runs] == [str(checkout.root / "requirements-cuda.txt")]


def test_a_stamped_installation_is_not_repeated(checkout: Checkout) -> None:
    installer.install(checkout, "cpu", ["base"], FakeRunner())
    assert installer.is_current(checkout, "base", "cpu")
    assert not installer.is_current(checkout, "dev", "cpu")
    assert not installer.is_current(checkout, "base", "cuda")
    again = FakeRunner()
    installer.install(checkout, "cpu", ["base", "dev"], again)
    assert [command[-1] for command in again.pip_runs] == [str(checkout.root / "requirements-dev.txt")]
    assert again.num_venvs == 0


def test_a_cuda_build_serves_when_the_driver_is_away(checkout: Checkout) -> None:
    installer.install(checkout, "cuda", ["base"], FakeRunner())
    assert installer.is_current(checkout, "base", "cpu")


@pytest.mark.parametrize("file", ["requirements.txt", "requirements-cuda.txt"])
def test_changed_requirements_are_installed(checkout: Checkout, file: str) -> None:
    installer.install(checkout, "cpu", ["base"], FakeRunner())
    with (checkout.root / file).open("a") as requirements:
        requirements.write("attrs==26.1.0\n")
    assert not installer.is_current(checkout, "base", "cpu")


def test_another_interpreter_behind_the_environment_is_noticed(checkout: Checkout) -> None:
    installer.install(checkout, "cpu", ["base"], FakeRunner())
    checkout.python.unlink()
    checkout.python.symlink_to("/bin/sh")
    assert not installer.is_current(checkout, "base", "cpu")


def test_an_interrupted_installation_is_begun_anew(checkout: Checkout) -> None:
    class Killed(BaseException):
        pass

    def interrupted(title: str, command: list[str]) -> tuple[int, list[str]]:
        if "pip" in command:
            raise Killed
        return FakeRunner()(title, command)

    with pytest.raises(Killed):
        installer.install(checkout, "cpu", ["base"], interrupted)
    assert not installer.is_current(checkout, "base", "cpu")
    again = FakeRunner()
    installer.install(checkout, "cpu", ["base"], again)
    assert again.num_venvs == 1
    assert installer.is_current(checkout, "base", "cpu")


def test_a_failed_step_shows_pips_last_lines_and_keeps_what_is_there(checkout: Checkout) -> None:
    requirements = str(checkout.root / "requirements.txt")
    run = FakeRunner({requirements: ["WARNING: connection broken by NewConnectionError", "ERROR: given up"]})
    with pytest.raises(SetupError) as failure:
        installer.install(checkout, "cpu", ["base"], run)
    assert "ERROR: given up" in str(failure.value)
    assert "PIP_INDEX_URL" in str(failure.value)
    again = FakeRunner()
    installer.install(checkout, "cpu", ["base"], again)
    assert again.num_venvs == 0


def test_a_python_without_venv_is_told_what_to_install(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SetupError, match=r"apt install python3\.\d+-venv"):
        installer.install(checkout, "cpu", ["base"], FakeRunner())


def test_a_folder_that_cannot_be_written_is_named(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(SetupError, match=re.escape(str(checkout.root))):
        installer.ensure_installed(checkout, "cpu", ["base"])


WAITING = """
import sys
from pathlib import Path
from kronos_cli.installer import exclusive
with exclusive(Path(sys.argv[1])):
    print("in")
"""


def test_a_second_launcher_waits_for_the_first(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WAITING, str(tmp_path)]
    with installer.exclusive(tmp_path):
        second = subprocess.Popen(
            command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert second.stderr is not None
        assert "waiting for it" in second.stderr.readline()
        assert second.poll() is None
    assert second.communicate(timeout=10)[0] == "in\n"


def test_what_is_shown_comes_from_a_real_run(capsys: pytest.CaptureFixture[str]) -> None:
    script = "import sys; print('Collecting torch==1'); print('ERROR: no'); sys.exit(3)"
    code, tail = installer.run_visibly("the step", [sys.executable, "-c", script])
    assert (code, tail) == (3, ["Collecting torch==1", "ERROR: no"])
    assert "the step" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("Collecting torch==2.13.0", "collecting torch==2.13.0"),
        (
            "  Downloading torch-2.13.0-cp311-linux.whl (526.6 MB)",
            "downloading torch-2.13.0 (526.6 MB)",
        ),
        ("Installing collected packages: a, b, c", "unpacking 3 packages"),
        ("Installing collected packages: torch", "unpacking torch"),
        ("Requirement already satisfied: x", None),
    ],
)
def test_pips_lines_are_condensed(line: str, shown: str | None) -> None:
    assert installer.condense(line) == shown


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
    ("arguments", "parts", "target"),
    [
        (["demo", "--seed", "3"], ["base"], ["-P", "-m", "kronos_cli", "demo", "--seed", "3"]),
        (["worker", "--dev"], ["base"], ["-P", "-m", "kronos_cli", "worker", "--dev"]),
        (["test", "-x"], ["base", "dev"], ["-m", "pytest", "-x"]),
        (
            ["test", "--faults"],
            ["base", "dev"],
            [
                "-m",
                "pytest",
                "-n",
                "4",
                "--dist",
                "loadfile",
                "--no-loadscope-reorder",
                "--faults",
                "-m",
                "faults or at_length",
            ],
        ),
    ],
)
def test_commands_are_handed_over_to_the_environments_python(
    launcher: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: list[str],
    parts: list[str],
    target: list[str],
) -> None:
    seen: dict[str, object] = {}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setattr(installer, "ensure_installed", lambda c, f, parts: seen.update(parts=parts))
    monkeypatch.setattr(os, "execv", lambda path, argv: seen.update(path=path, argv=argv, cwd=Path.cwd()))
    launcher.main(arguments)
    python = ROOT / ".venv" / "bin" / "python"
    assert seen["parts"] == parts
    assert (seen["path"], seen["argv"]) == (python, [str(python), *target])
    assert seen["cwd"] == (ROOT if arguments[0] == "test" else tmp_path)
    assert os.environ["PYTHONPATH"] == os.pathsep.join([str(ROOT), "/elsewhere"])
    assert ("PYTHONDONTWRITEBYTECODE" in os.environ) == (arguments[0] != "test")


def test_the_launcher_needs_no_syntax_that_an_old_python_lacks() -> None:
    import ast

    ast.parse((ROOT / "kronos").read_text(), feature_version=(3, 6))
