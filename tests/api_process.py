"""The HTTP API as a process of its own."""

import contextlib
import os
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

from tests import fork_server
from tests.ports import free_port
from tests.waiting import WAIT_S

ROOT = Path(__file__).parents[1]


class ApiUnderTest:
    """The API, and its address, which ends in a slash; it may be stopped and started again at the same one.

    Args:
        command: run as ``python -m``, with the port in its environment.
    """

    def __init__(
        self, redis_url: str, log: Path, settings: dict[str, str], command: tuple[str, ...] = ("api_stub",)
    ) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/"
        self.log = log
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("KRONOS_")}
        own = {"KRONOS_REDIS_URL": redis_url, "KRONOS_API_PORT": str(self.port)}
        self._env = inherited | own | settings
        self._command = command
        self.start()

    def start(self) -> None:
        with self.log.open("a") as output:
            self.process = fork_server.Process(
                self._command, self._env, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT
            )
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}v1/healthz", timeout=1):
                return
            time.sleep(0.05)
        pytest.fail(f"the API does not answer:\n{self.log.read_text()}")

    def kill_and_start(self) -> None:
        """As after SIGKILL."""
        self.process.kill()
        self.process.wait(WAIT_S)
        self.start()

    def stop(self) -> int:
        """The exit status; negative for the signal by which uvicorn ends once it has stopped."""
        self.process.terminate()
        try:
            return self.process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()
