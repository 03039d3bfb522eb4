"""Programs that do nothing but write down how they were called, for tests of shell scripts."""

import os
import subprocess
from pathlib import Path
from typing import Final

from tests.waiting import WAIT_S

# It prints the file of its name, or fails if there is one that ends in .fails.
PROGRAM: Final = r"""#!/bin/bash
name=${0##*/}
echo "$name $*" >>"$CALLS"
[ ! -e "$REPLIES/$name.fails" ] || exit 1
case "$name $*" in
    gpg* | *--password-stdin*) cat >/dev/null ;;
    curl*/token) echo '{"access_token":"T0ken","expires_in":3599}' ;;
    curl*:access) printf '{"payload": {\n "data": "czNjcmV0",\n "dataCrc32c": "1"}}\n' ;;
    curl*/metrics) cat "$REPLIES/metrics" ;;
    curl*/timeSeries*) cat >>"$REPLIES/points" ;;
esac
[ ! -e "$REPLIES/$name" ] || cat "$REPLIES/$name"
"""


class StandIns:
    """Programs in front of PATH, and the calls of the last run."""

    def __init__(self, folder: Path, *names: str) -> None:
        self.replies, self._programs, self._calls = folder / "replies", folder / "bin", folder / "calls"
        self.replies.mkdir()
        self._programs.mkdir()
        for name in names:
            (self._programs / name).write_text(PROGRAM)
            (self._programs / name).chmod(0o755)

    def reply(self, program: str, text: str) -> None:
        (self.replies / f"{program}.fails").unlink(missing_ok=True)
        (self.replies / program).write_text(text)

    def fail(self, *programs: str) -> None:
        for program in programs:
            (self.replies / f"{program}.fails").touch()

    def run(self, script: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a script of bash without a terminal."""
        self._calls.write_text("")
        environment = {
            "PATH": f"{self._programs}:{os.environ['PATH']}",
            "CALLS": str(self._calls),
            "REPLIES": str(self.replies),
            **variables,
        }
        return subprocess.run(
            ["bash", script, *arguments],
            env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=WAIT_S, check=False,
        )  # fmt: skip

    @property
    def calls(self) -> str:
        return self._calls.read_text()
