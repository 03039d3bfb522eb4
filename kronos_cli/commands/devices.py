"""``kronos devices``."""

from collections.abc import Mapping, Sequence
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.text import Text

from kronos_cli.checks.machine import OFFLINE, PROBE_TIMEOUT_S
from kronos_cli.settings import get_settings
from kronos_cli.terminal import show, simple_table
from worker.inference.probe import ALL, ProbeError, run_probe


@click.command()
@click.argument("names", nargs=-1, metavar="[DEVICE]...")
@click.option("--model", help="Model for the recommended slots; overrides KRONOS_MODEL.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def devices(names: tuple[str, ...], model: str | None, as_json: bool) -> None:
    """Show the device that each name resolves to on this machine, with memory and recommended slots.

    Without DEVICE: auto, cpu, cuda, mps and each GPU. Slots are the sample paths that a worker with these
    settings computes at once, at most KRONOS_MAX_SLOTS. A GPU runs only a tiny computation.

    Exit status: 0, or 1 if a name is not a device.
    """
    get_settings()  # an invalid setting ends here with one line
    environment = OFFLINE if model is None else OFFLINE | {"KRONOS_MODEL": model}
    try:
        report = run_probe(
            names or (ALL,), with_slots=True, environment=environment, timeout_s=PROBE_TIMEOUT_S
        )
    except ProbeError as error:
        raise click.ClickException(str(error)) from None
    found = report["devices"]
    show(found, devices_table(found), as_json=as_json)
    raise SystemExit(1 if any("error" in device for device in found) else 0)


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
