"""``kronos check``."""

import json
from collections.abc import Sequence
from dataclasses import asdict

import click

from kronos_cli.checks.finding import Finding, is_ok
from kronos_cli.checks.installation import check_installation, worker_here
from kronos_cli.settings import get_settings

SIGNS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "failed": ("✗", "red")}


@click.command()
@click.option(
    "--worker", "only_worker", is_flag=True, help="Check only that a worker on this host is ready; fast."
)
@click.option("--no-compute", is_flag=True, help="Skip device and model, which take seconds.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def check(only_worker: bool, no_compute: bool, as_json: bool) -> None:
    """Check this installation, and print a remedy for each problem.

    Checks Redis, package versions, folders, ports, the device and the model, with the settings that a worker
    on this machine would read. Nothing is downloaded or changed.

    Exit status: 0, also with warnings; 1 if a check failed.
    """
    if only_worker:
        findings = [worker_here(get_settings())]
    else:
        findings = check_installation(with_compute=not no_compute)
    if as_json:
        print_json(findings)
    else:
        _print(findings)
    raise SystemExit(0 if is_ok(findings) else 1)


def print_json(findings: Sequence[Finding]) -> None:
    """Print the findings as one object; ``ok`` is true if no check failed."""
    found = [asdict(finding) for finding in findings]
    click.echo(json.dumps({"ok": is_ok(findings), "findings": found}, indent=2))


def _print(findings: Sequence[Finding]) -> None:
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ModuleNotFoundError:  # the findings name it
        for finding in findings:
            click.echo(f"{SIGNS[finding.level][0]} {finding.check}: {finding.message}")
            if finding.remedy:
                click.echo(f"  → {finding.remedy}")
        return
    table = Table.grid(padding=(0, 1))
    for overflow in ("ignore", "ignore", "fold"):
        table.add_column(overflow=overflow, no_wrap=overflow == "ignore")
    for finding in findings:
        sign, style = SIGNS[finding.level]
        table.add_row(Text(sign, style=style), Text(finding.check), Text(finding.message))
        if finding.remedy:
            table.add_row("", "", Text(f"→ {finding.remedy}", style=style))
    Console().print(table)
