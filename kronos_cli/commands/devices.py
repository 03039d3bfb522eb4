"""``kronos devices``."""

import click

from kronos_cli.checks.machine import OFFLINE, PROBE_TIMEOUT_S
from kronos_cli.settings import get_settings
from kronos_cli.tables.devices import devices_table
from kronos_cli.tables.parts import show
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
    raise SystemExit(1 if any("error" in one for one in found) else 0)
