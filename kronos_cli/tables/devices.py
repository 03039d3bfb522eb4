"""The table of devices."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from kronos_cli.tables.parts import simple_table


def devices_table(devices: Sequence[Mapping[str, Any]]) -> RenderableType:
    """One row per device in a probe's report, and below it the warnings."""
    table = simple_table(
        "asked for", "device", "name", "free", "memory", "slots", names=("asked for", "device", "name")
    )
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
