"""Shell completion: the printed scripts make shells list commands and options."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from kronos_cli.main import cli
from tests.waiting import WAIT_S

ROOT = Path(__file__).resolve().parents[3]


def script(shell: str) -> str:
    outcome = CliRunner().invoke(cli, ["completion", shell])
    assert outcome.exit_code == 0, outcome.output
    return outcome.output


@pytest.fixture
def on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on PATH with ``kronos`` in it, as a launcher that is installed already."""
    command = tmp_path / "kronos"
    # As pip writes it for an entry of [project.scripts].
    command.write_text(f"#!{sys.executable}\nimport sys\nfrom kronos_cli.main import cli\nsys.exit(cli())\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return tmp_path


def in_shell(shell: str, text: str, *options: str) -> list[str]:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed: apt-get install {shell}")
    done = subprocess.run([shell, *options, "-c", text], capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def ask_bash(words: str, *, command: str = "kronos") -> list[str]:
    number = len(words.split()) - (0 if words.endswith(" ") else 1)
    return in_shell(
        "bash",
        f"{script('bash')}\nCOMP_WORDS=({words}); COMP_CWORD={number}\n"
        f'_kronos_completion {command}\nprintf "%s\\n" "${{COMPREPLY[@]}}"',
    )


@pytest.mark.usefixtures("on_path")
def test_bash_lists_commands_and_options() -> None:
    assert set(ask_bash("kronos ")) == {name for name, command in cli.commands.items() if not command.hidden}
    assert ask_bash("kronos forec") == ["forecast"]
    assert {"--output", "--plot"} <= set(ask_bash("kronos forecast --"))
    assert ask_bash("kronos forecast --priority h") == ["high"]


def test_bash_completes_the_launcher_itself() -> None:
    found = ask_bash("kronos que", command=str(ROOT / "kronos"))
    assert found in (["queues"], [])  # nothing where .venv is not there yet
    assert found == ["queues"] or not (ROOT / ".venv").exists()


@pytest.mark.usefixtures("on_path")
def test_fish_lists_commands() -> None:
    listed = in_shell("fish", f"{script('fish')}\ncomplete --do-complete 'kronos '")
    assert {"forecast", "queues"} <= set(listed)


@pytest.mark.usefixtures("on_path")
@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("kronos forec", {"forecast"}),
        ("kronos que", {"queues"}),
        ("kronos forecast --priority h", {"high"}),
        ("kronos forecast --pl", {"--plot"}),
    ],
)
def test_zsh_lists_commands_and_options(words: str, found: set[str]) -> None:
    # What adds matches works in zsh's line editor only, so that here it prints them.
    text = f"""
autoload -Uz compinit && compinit -u -D
{script("zsh")}
_describe() {{ print -rl -- "${{(@)${{(@P)3}}%%:*}}" }}
compadd() {{ print -rl -- "${{(@P)@[-1]}}" }}
words=({words}); CURRENT=$#words
$_comps[kronos]
"""
    assert set(in_shell("zsh", text, "-f")) == found


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_script_is_for_kronos(shell: str) -> None:
    assert f"_KRONOS_COMPLETE={shell}_complete" in script(shell)


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_requests_of_those_scripts_are_answered(shell: str, on_path: Path) -> None:
    asked = {"COMP_WORDS": "kronos stat", "COMP_CWORD": "1" if shell == "zsh" else "stat"}
    done = subprocess.run(
        [on_path / "kronos"],
        env=os.environ | asked | {"_KRONOS_COMPLETE": f"{shell}_complete"},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert "status" in done.stdout
