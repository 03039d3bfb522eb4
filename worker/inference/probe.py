"""Tests this machine's devices in a short-lived process, ``probe_child.py``.

So this process needs no torch, and survives a driver that crashes its process.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from kronos_model.processes.children import LineSink, LocalStackError, module_command, own_environment
from kronos_model.processes.json_child import ChildEnded, JsonChild

ALL: Final = "all"
MISSING: Final = re.compile(r"ModuleNotFoundError: No module named '(?P<name>[\w.]+)'")


class ProbeError(RuntimeError):
    """The probe gave no report; the message says why."""


def run_probe(
    names: Sequence[str],
    *,
    with_slots: bool = False,
    with_model: bool = False,
    environment: Mapping[str, str] | None = None,
    error_sink: LineSink = lambda name, line: None,
    timeout_s: float = math.inf,
) -> dict[str, Any]:
    """Resolve these devices, and test if the worker's model loads on the first; see ``report_on``.

    Raises:
        ProbeError: The process failed or took too long.
        ModuleNotFoundError: A package is missing.
    """
    command, env = module_command("worker.inference.probe_child"), own_environment(environment or {})
    try:
        child = JsonChild("probe", command, env=env, error_sink=error_sink)
    except LocalStackError as error:
        raise ProbeError(str(error)) from None
    try:
        child.send({"devices": list(names), "with_slots": with_slots, "with_model": with_model})
        report = child.next_event(timeout_s)
    except ChildEnded as ended:
        last = next(reversed(child.tail()), "no output")
        if missing := MISSING.fullmatch(last):
            raise ModuleNotFoundError(last, name=missing["name"]) from None
        raise ProbeError(f"{ended}: {last}") from None
    finally:
        child.end()
    if report is None:
        raise ProbeError(f"the test of the device took longer than {timeout_s:g} s")
    if report["event"] == "error":
        raise ProbeError(report["message"])
    return dict(report)
