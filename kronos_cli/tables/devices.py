"""The table of devices."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from kronos_cli.tables.parts import simple_table


def devices_table(devices: Sequence[Mapping[str, Any]]) -> RenderableType:
    """One row per device in a probe's report, and below it the warnings."""
    names = ("asked for", "device", "name")
    table = simple_table(*names, "free", "memory", "slots", names=names)
    remarks: dict[str, str] = {}
    for device in devices:
        if "error" in device:
            table.add_row(Text(device["requested"]), Text("none", style="red"))
            remarks[device["error"]] = "red"
            continue
        what, warning, slots = device["description"], device["warning"], device["slots"]
        table.add_row(
            Text(device["requested"]), Text(device["device"], style="yellow" if warning else ""),
            Text(what["name"]), _gib(what["memory_free_bytes"]), _gib(what["memory_total_bytes"]),
            "?" if slots is None else str(slots),
        )  # fmt: skip
        for remark in filter(None, (warning, device["skipped"])):
            remarks[remark] = "yellow"
        if device["slots_error"]:
            remarks[f"slots are not known: {device['slots_error']}"] = "yellow"
    return Group(table, *(Text(text, style=style) for text, style in remarks.items()))


def _gib(num_bytes: int | None) -> str:
    return "?" if num_bytes is None else f"{num_bytes / 2**30:,.1f} GiB"
