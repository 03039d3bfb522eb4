"""Makes the checkout's .venv and installs into it, on behalf of the launcher: standard library only.

What is installed is stamped, so that the next start goes straight on; an installation that was interrupted
is begun anew; of two started at once the second waits for the first.
"""

import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
CPU_INDEX_TIMEOUT_S = 10
NUM_TAIL_LINES = 15

# What pip prints, and what helps. The first that matches is shown.
REMEDIES = (
    (r"No space left on device", "Make room on this disk (about 2 GB) and start again."),
    (r"Permission denied|Read-only file system", "Make this folder writable, or copy it to one that is."),
    (
        r"connection broken|NewConnectionError|name resolution|timed out|Network is unreachable|SSLError",
        "pip cannot reach the package index: check the network, or set PIP_INDEX_URL or PIP_PROXY.",
    ),
    (
        r"No matching distribution|not a supported wheel",
        "The index has no such build for this Python and machine (Python 3.11 to 3.13 are the tried ones); "
        "without a network the cause is that the index cannot be reached.",
    ),
)

Runner = Callable[[str, list[str]], tuple[int, list[str]]]


class SetupError(Exception):
    """The installation cannot go on; the message says what to do."""


@dataclass(frozen=True)
class Checkout:
    """The folder this launcher lies in, and the virtual environment in it."""

    root: Path

    @property
    def venv(self) -> Path:
        return self.root / ".venv"

    @property
    def python(self) -> Path:
        return self.venv / "bin" / "python"

    @property
    def unfinished(self) -> Path:
        """Lies there while an installation is under way: found at a start, it was interrupted."""
        return self.venv / "kronos-unfinished"

    def stamp(self, name: str) -> Path:
        return self.venv / f"kronos-{name}.stamp"

    def requirements(self, kind: str = "") -> tuple[str, str]:
        """pip's arguments for requirements.txt, or the -cuda or -dev one."""
        return ("-r", str(self.root / f"requirements{kind}.txt"))

    def torch_pin(self) -> str:
        """The version of torch that requirements.txt asks for."""
        found = re.search(r"^torch==([^\s;]+)", (self.root / "requirements.txt").read_text(), re.MULTILINE)
        if found is None:
            raise SetupError("requirements.txt pins no torch")
        return found[1]


@dataclass(frozen=True)
class Step:
    """One pip run. ``fallback`` is what to install when the asked-for build cannot be found."""

    title: str
    arguments: tuple[str, ...]
    fallback: "Step | None" = None


def say(text: str, end: str = "\n") -> None:
    """To stderr: stdout belongs to the command that follows."""
    sys.stderr.write(text + end)
    sys.stderr.flush()


def has_nvidia_driver() -> bool:
    """Whether this machine has an NVIDIA GPU that its owner set up, CUDA build of torch or not."""
    signs = (Path("/proc/driver/nvidia"), Path("/dev/nvidia0"))
    return any(sign.exists() for sign in signs) or shutil.which("nvidia-smi") is not None


def torch_flavour(platform: str, nvidia: bool) -> str:
    """Which build of torch serves here: "cuda", "cpu", or "default" where the index has only one (macOS)."""
    if not platform.startswith("linux"):
        return "default"
    return "cuda" if nvidia else "cpu"


def base_steps(checkout: Checkout, flavour: str) -> list[Step]:
    """What to install, in order, for a worker on this machine."""
    if flavour == "cuda":
        return [Step("torch for CUDA and the other packages (several GB)", checkout.requirements("-cuda"))]
    steps = [Step("the other packages", checkout.requirements())]
    if flavour == "cpu":
        pin = checkout.torch_pin()
        default = Step(f"torch {pin} from the default index (with CUDA, several GB)", (f"torch=={pin}",))
        # Without dependencies: those come from the default index with the rest. "+cpu" keeps pip from
        # taking a CUDA build from an index that its configuration adds.
        from_cpu_index = ("--index-url", CPU_INDEX, "--retries", "0", "--timeout", str(CPU_INDEX_TIMEOUT_S))
        wanted = (*from_cpu_index, "--no-deps", f"torch=={pin}+cpu")
        steps.insert(0, Step(f"torch {pin} for the CPU", wanted, fallback=default))
    return steps


def digest(checkout: Checkout, part: str, flavour: str) -> str:
    """Identifies what is installed: requirements, build of torch, and the interpreter behind .venv."""
    interpreter = os.path.realpath(checkout.python)
    kinds = ["", "-cuda", "-dev"] if part == "dev" else ["", "-cuda"]
    files = [Path(checkout.requirements(kind)[1]).read_bytes() for kind in kinds]
    return hashlib.sha256(b"\0".join([f"{part} {flavour} {interpreter}".encode(), *files])).hexdigest()


def is_current(checkout: Checkout, part: str, flavour: str) -> bool:
    """Whether ``part`` ("base" or "dev") is installed; a CUDA build serves without a GPU as well."""
    stamp = checkout.stamp(part)
    accepted = {flavour, "cuda"} if flavour == "cpu" else {flavour}
    return (
        checkout.python.exists()
        and stamp.exists()
        and stamp.read_text() in {digest(checkout, part, one) for one in accepted}
    )


def condense(line: str) -> str | None:
    """What a line of pip's output says in a few words; None when it is of no interest."""
    word, _, rest = line.strip().partition(" ")
    if word in ("Collecting", "Downloading", "Processing", "Building"):
        name = rest.split(" ")[0].rsplit("/", 1)[-1].split("-cp3")[0].split("-py3")[0]
        size = re.search(r"\([\d.]+ [kMG]B\)", rest)
        return " ".join([word.lower(), name if word != "Building" else rest, size[0] if size else ""]).strip()
    if word == "Installing":
        names = rest.removeprefix("collected packages: ").split(", ")
        return f"unpacking {names[0] if len(names) == 1 else f'{len(names)} packages'}"
    return None


def run_visibly(title: str, command: list[str], inherited: tuple[int, ...] = ()) -> tuple[int, list[str]]:
    """Run, showing what goes on; returns the exit status and the last lines.

    On a terminal one line is rewritten, elsewhere one is added every few seconds. ``inherited`` are file
    descriptors for the child: holding the lock too, it keeps it should this process be killed.
    """
    tty = sys.stderr.isatty()
    say(f"  {title}")
    started = time.monotonic()
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        pass_fds=inherited,
        process_group=0,
    )
    assert process.stdout is not None
    tail: deque[str] = deque(maxlen=NUM_TAIL_LINES)
    activity = ["starting"]

    def read(lines: Iterator[str]) -> None:
        for line in lines:
            tail.append(line.rstrip())
            activity[0] = condense(line) or activity[0]

    reader = threading.Thread(target=read, args=(process.stdout,), daemon=True)
    reader.start()
    while (code := process.poll()) is None:
        try:
            process.wait(timeout=0.25 if tty else 5)
        except subprocess.TimeoutExpired:
            text = f"    {time.monotonic() - started:4.0f} s  {activity[0]}"
            say(f"\r{text[:78]:<78}" if tty else text, end="" if tty else "\n")
        except KeyboardInterrupt:
            end_group(process)
            process.wait()
            raise
    end_group(process)  # what it left running would keep the lock, and this waiting
    reader.join()
    if tty:
        say(f"\r{'':<78}\r", end="")
    verdict = "done" if code == 0 else "failed"
    say(f"    {time.monotonic() - started:4.0f} s  {verdict}")
    return code, list(tail)


def end_group(process: "subprocess.Popen[str]") -> None:
    """End it and all that it started, as far as they are there."""
    with suppress(ProcessLookupError, PermissionError):  # the latter on macOS
        os.killpg(process.pid, signal.SIGTERM)


def remedy(tail: list[str]) -> str:
    """What the user can do about a failure that ended in these lines."""
    text = "\n".join(tail)
    return next((hint for pattern, hint in REMEDIES if re.search(pattern, text)), "Mend this, start again.")


def install_step(checkout: Checkout, step: Step, run: Runner) -> None:
    """Run one step, and its fallback when the build it wants is not to be had."""
    pip = [str(checkout.python), "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    code, tail = run(step.title, [*pip, "--no-compile", "--progress-bar", "off", *step.arguments])
    if code == 0:
        return
    if step.fallback is not None and any("No matching distribution" in line for line in tail):
        say(f"  not found at {CPU_INDEX}, or it cannot be reached")
        install_step(checkout, step.fallback, run)
        return
    # pip undoes a failed step, so what is there can be kept.
    checkout.unfinished.unlink(missing_ok=True)
    raise SetupError("\n".join(["pip's last lines:", *(f"    {line}" for line in tail), remedy(tail)]))


def compile_packages(checkout: Checkout, run: Runner) -> None:
    """Bytecode of all packages, by all cores; pip compiles on one, for half of the installation's time.

    What cannot be compiled here is so when it is imported, or never: some packages bring templates.
    """
    script = "import compileall, sys; compileall.compile_dir(sys.argv[1], quiet=2, workers=0)"
    code, tail = run(
        "bytecode, on all cores", [str(checkout.python), "-c", script, str(checkout.venv / "lib")]
    )
    if code != 0:
        say(f"  it is made as packages are imported: {tail[-1] if tail else f'status {code}'}")


def make_venv(checkout: Checkout, run: Runner) -> None:
    """Make .venv, unless there is one that works and whose last installation was not interrupted."""
    if checkout.python.exists() and not checkout.unfinished.exists():
        probe = [str(checkout.python), "-c", "import sys, pip; sys.exit(sys.version_info < (3, 11))"]
        if subprocess.run(probe, capture_output=True).returncode == 0:
            return
    if importlib.util.find_spec("ensurepip") is None:
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        raise SetupError(f"this Python has no venv; on Debian and Ubuntu: apt install python{version}-venv")
    version = ".".join(map(str, sys.version_info[:3]))
    command = [sys.executable, "-m", "venv", "--clear", str(checkout.venv)]
    code, tail = run(f"virtual environment with Python {version}", command)
    if code != 0:
        raise SetupError("\n".join([*tail, remedy(tail)]))


def install(checkout: Checkout, flavour: str, parts: list[str], run: Runner) -> None:
    """Install what is missing, stamping each part when it is whole.

    :raises SetupError: naming what to do; the parts that were finished before stay installed
    """
    say(f"Installing into {checkout.venv}; this is done once.")
    make_venv(checkout, run)
    checkout.unfinished.touch()
    for part in parts:
        if not is_current(checkout, part, flavour):
            checkout.stamp(part).unlink(missing_ok=True)
            dev_steps = [Step("what tests and checks need", checkout.requirements("-dev"))]
            for step in dev_steps if part == "dev" else base_steps(checkout, flavour):
                install_step(checkout, step, run)
            checkout.stamp(part).write_text(digest(checkout, part, flavour))
    checkout.unfinished.unlink()
    compile_packages(checkout, run)


@contextmanager
def exclusive(folder: Path) -> Iterator[int]:
    """Hold the folder's lock: of two launchers started at once the second waits, and finds all installed."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("Another kronos is installing here; waiting for it.")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def ensure_installed(checkout: Checkout, flavour: str, parts: list[str]) -> None:
    """Install unless the stamps say that all is there."""

    def all_current() -> bool:
        return not checkout.unfinished.exists() and all(is_current(checkout, part, flavour) for part in parts)

    if all_current():
        return
    if not os.access(checkout.root, os.W_OK):
        raise SetupError(
            f"cannot write to {checkout.root}, and .venv goes there; copy it to a folder of yours"
        )
    with exclusive(checkout.root) as lock:
        if not all_current():
            install(checkout, flavour, parts, lambda title, command: run_visibly(title, command, (lock,)))
