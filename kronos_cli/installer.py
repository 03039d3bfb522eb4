"""Makes .venv in the checkout and installs into it, for the launcher. Standard library only.

pip installs uv, and uv the packages. Where uv cannot get them, pip does. A stamp lists what is installed:
the next start skips all this. It is empty during an installation: one that was interrupted starts over.
"""

import ast
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE, STDOUT
from typing import Any

UV = "uv==0.13.9"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
NOT_FOUND = "No solution found|No matching distribution|not a supported wheel|No module named uv"
UNREACHABLE = "Failed to fetch|error sending request|connection broken|NewConnectionError|timed out|SSLError"
# The first whose pattern is in the output of a failed command is shown.
REMEDIES = {
    "No space left on device": "Make room on this disk (about 2 GB) and start again.",
    "Permission denied|Read-only file system": "Make this folder writable, or copy it to one that is.",
    "ensurepip": "This Python has no venv. On Debian and Ubuntu: apt install python3-venv",
    UNREACHABLE: "The package index cannot be reached: check the network, or set PIP_INDEX_URL or PIP_PROXY.",
    NOT_FOUND: "The index has no such build for this machine and Python (3.11 to 3.13 are tested).",
    "": "Correct the cause and start again.",
}
# pip's options, and uv's for them. Variables, since every user of the machine can read a command's flags.
UV_VARIABLES = {
    "index-url": "UV_DEFAULT_INDEX", "extra-index-url": "UV_EXTRA_INDEX_URL", "find-links": "UV_FIND_LINKS",
    "constraint": "UV_CONSTRAINT", "cert": "SSL_CERT_FILE", "proxy": "ALL_PROXY",
}  # fmt: skip


class SetupError(Exception):
    """The message has the cause and the remedy."""


def torch_flavour() -> str:
    """The build of torch for this machine: "cuda", "cpu", or "default" if there is only one (macOS)."""
    if not sys.platform.startswith("linux"):
        return "default"
    driver = any(map(os.path.exists, ("/proc/driver/nvidia", "/dev/nvidia0"))) or shutil.which("nvidia-smi")
    return "cuda" if driver else "cpu"


def requirements(venv: Path, flavour: str, dev: bool) -> list[Path]:
    """The files to install from, with what tests and checks need if ``dev``."""
    kinds = ["", *["-cuda"] * (flavour == "cuda"), *["-dev"] * dev]
    return [venv.with_name(f"requirements{kind}.txt") for kind in kinds]


def mark(venv: Path, flavour: str, dev: bool) -> str:
    """Identify an installation by its requirements, build of torch and interpreter."""
    texts = [file.read_text() for file in requirements(venv, flavour, dev)]
    content = "\0".join([flavour, str(dev), os.path.realpath(venv / "bin" / "python"), *texts])
    return hashlib.sha256(content.encode()).hexdigest()


def is_installed(venv: Path, dev: bool) -> bool:
    """Whether the stamp names this installation, or one with more: a CUDA build also serves without a GPU."""
    stamp, flavour = venv / "kronos.stamp", torch_flavour()
    if not stamp.exists() or not (venv / "bin" / "python").exists():
        return False
    flavours = ["cpu", "cuda"] if flavour == "cpu" else [flavour]
    return stamp.read_text() in [mark(venv, build, more) for build in flavours for more in {dev, True}]


def run(title: str, *command: str, **variables: str) -> None:
    """Run a command with these variables added, and show its main lines. Raises SetupError if it fails."""
    print(f"  {title}", file=sys.stderr)
    lines = []
    # The command inherits the lock, in case this process is killed.
    settings: dict[str, Any] = {"env": os.environ | variables, "close_fds": False, "text": True}
    with subprocess.Popen(command, stdout=PIPE, stderr=STDOUT, errors="replace", **settings) as process:
        for line in process.stdout or ():
            lines.append(f"    {line.rstrip()}")
            if re.match("Downloading|Prepared|Installed|warning", line):
                print(lines[-1][:100], file=sys.stderr)
    if process.returncode != 0:
        remedy = next(text for pattern, text in REMEDIES.items() if re.search(pattern, "\n".join(lines)))
        raise SetupError("\n".join(["the installation failed:", *lines[-15:], remedy]))


def uv_settings(python: str) -> tuple[list[str], dict[str, str]]:
    """pip's configuration as flags and variables of uv."""
    listed = subprocess.run([python, "-m", "pip", "config", "list"], capture_output=True, text=True).stdout
    options: dict[str, list[str]] = {}
    for section in ("global", "install", ":env:"):  # the last one counts
        for name, value in re.findall(rf"^{section}\.(\S+?)=(.*)$", listed, re.MULTILINE):
            options[name] = ast.literal_eval(value).split()
    variables = {"UV_INDEX_STRATEGY": "unsafe-best-match"}  # as for pip, no index goes before another
    for name in options.keys() & UV_VARIABLES:
        variables[UV_VARIABLES[name]] = ("," if name == "find-links" else " ").join(options[name])
    has_index = options.get("no-index", ["no"])[0].lower() not in ("1", "true", "yes", "on")
    return [] if has_index else ["--no-index"], variables


def install_packages(venv: Path, dev: bool) -> None:
    """Install from the first source that has all packages."""
    python, flavour = str(venv / "bin" / "python"), torch_flavour()
    flags, variables = uv_settings(python)
    files = [f"--requirement={file}" for file in requirements(venv, flavour, dev)]
    uv = [python, "-m", "uv", "pip", "install", "--no-config", "--python", python, *flags, *files]
    pip = [python, "-m", "pip", "install", "--no-input", "--no-compile", "--progress-bar=off", *files]
    attempts = {"packages": uv, "packages, by pip": pip}
    if flavour == "cpu":
        text = venv.with_name("requirements.txt").read_text()
        pin = re.findall(r"^torch==[^\s;]+", text, re.MULTILINE)[0] + "+cpu"
        attempts = {
            "packages": [*uv, pin],
            f"packages, torch from {CPU_INDEX}": [*uv, pin, "--torch-backend=cpu"],
            "packages, by pip": [*pip, pin],
            f"packages, torch from {CPU_INDEX}, by pip":
                [*pip, pin, "--retries=0", f"--extra-index-url={CPU_INDEX}"],
            "packages, torch with CUDA (several GB), since no CPU build was found": pip,
        }  # fmt: skip
    for title, command in attempts.items():
        try:
            run(title, *command, **variables)
            return
        except SetupError as error:
            elsewhere = f"{NOT_FOUND}|{UNREACHABLE}" if "uv" in command else "No matching distribution"
            if command is pip or not re.search(elsewhere, str(error)):
                raise


def install(venv: Path, dev: bool) -> None:
    """Install into .venv. Make it anew if it does not work or an installation in it was interrupted."""
    python, stamp = str(venv / "bin" / "python"), venv / "kronos.stamp"
    print(f"Installing into {venv}; this is done once.", file=sys.stderr)
    before = stamp.read_text() if stamp.exists() else "none"
    probe = [python, "-c", "import sys, pip; sys.exit(sys.version_info < (3, 11))"]
    if not before or not Path(python).exists() or subprocess.run(probe, capture_output=True).returncode:
        run("virtual environment", sys.executable, "-m", "venv", "--clear", str(venv))
    stamp.write_text("")
    try:
        with suppress(SetupError):  # pip can do without
            run("uv", python, "-m", "pip", "install", "--no-input", "--retries=1", UV)
        install_packages(venv, dev)
    except SetupError:
        stamp.write_text(before)
        raise
    stamp.write_text(mark(venv, torch_flavour(), dev))


def ensure_installed(venv: Path, dev: bool) -> None:
    """Install what is missing, one launcher after the other. Raises SetupError with the remedy."""
    if is_installed(venv, dev):
        return
    if not os.access(venv.parent, os.W_OK):
        raise SetupError(f"{venv.parent} is read-only, and .venv goes there. Copy it to a folder of yours.")
    lock = os.open(venv.parent, os.O_RDONLY)
    os.set_inheritable(lock, True)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("Another kronos is installing here; waiting for it.", file=sys.stderr)
        fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        if not is_installed(venv, dev):
            install(venv, dev)
    finally:
        os.close(lock)
