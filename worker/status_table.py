"""Live workers as a table for the terminal."""

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from worker.routing import Status

STATE_STYLES = {"ready": "green", "loading": "yellow", "draining": "magenta"}


def status_table(workers: Sequence[Status]) -> RenderableType:
    """One row a worker, and the device warnings in full below.

    What announcements say is shown as it is, never read as markup.
    """
    table = Table(box=box.SIMPLE, pad_edge=False)
    # Of long names the end is what differs, so the name is folded and never cut.
    table.add_column("worker", overflow="fold")
    for column in ("state", "device", "queue"):
        table.add_column(column, no_wrap=True)
    table.add_column("model", overflow="fold")
    for column in ("jobs", "failed", "slots", "up"):
        table.add_column(column, no_wrap=True, justify="right")
    for worker in workers:
        state = str(worker["state"])
        table.add_row(
            Text(str(worker["node"])),
            Text(state, style=STATE_STYLES.get(state, "")),
            Text(str(worker["device"])),
            Text(str(worker["queue"])),
            model_text(worker),
            str(worker["jobs_done"]),
            str(worker["jobs_failed"]),
            f"{worker['slots_used']}/{worker['slots']}",
            duration(float(worker["uptime_s"])),
        )
    warnings = [
        Text(f"{worker['node']}: {worker['device_warning']}", style="yellow")
        for worker in workers
        if worker["device_warning"]
    ]
    return Group(table, *warnings)


def model_text(worker: Status) -> Text:
    """The model's id, with the first letters of its revision where it has one."""
    model = worker["model"]
    if model is None:
        return Text("…", style="dim")
    revision = f" @{model['revision'][:8]}" if model["revision"] else ""
    return Text(f"{model['id']}{revision}")


def duration(seconds: float) -> str:
    """As "12 s", "5 min", "3 h" or "2 d"."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"
