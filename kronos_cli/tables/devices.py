"""Devices for the terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text


def devices_table(devices: Sequence[Mapping[str, Any]]) -> RenderableType:
    """One row for each device in a probe's report, and below why any is not as asked."""
    table = Table(box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    for name, justify in (("asked for", "left"), ("device", "left"), ("name", "left")):
        table.add_column(name, overflow="fold", justify=justify)  # type: ignore[arg-type]
    for name in ("free", "memory", "slots"):
        table.add_column(name, no_wrap=True, justify="right")
    remarks: dict[str, str] = {}
    for device in devices:
        if "error" in device:
            table.add_row(Text(device["requested"]), Text("none", style="red"))
            remarks[device["error"]] = "red"
            continue
        what = device["description"]
        slots = device["slots"]
        table.add_row(
            Text(device["requested"]),
            Text(device["device"], style="yellow" if device["warning"] else ""),
            Text(what["name"]),
            _gib(what["memory_free_bytes"]),
            _gib(what["memory_total_bytes"]),
            "?" if slots is None else str(slots),
        )
        if device["warning"]:
            remarks[device["warning"]] = "yellow"
        if device["slots_error"]:
            remarks[f"slots are not known: {device['slots_error']}"] = "yellow"
    return Group(table, *(Text(text, style=style) for text, style in remarks.items()))


def _gib(num_bytes: int | None) -> str:
    return "?" if num_bytes is None else f"{num_bytes / 2**30:,.1f} GiB"
