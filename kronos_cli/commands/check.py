"""``kronos check``."""

import json
import os
import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import asdict

import click

from kronos_cli.checks import Finding, is_ok
from kronos_cli.checks.installation import check_installation, worker_here
from kronos_cli.settings import get_settings

SIGNS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "failed": ("✗", "red")}


@click.command()
@click.option("--worker", "only_worker", is_flag=True, help="Check only that a worker on this host is ready.")
@click.option("--no-compute", is_flag=True, help="Skip the device and the model, which take seconds.")
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
    """Print without rich, which may be the package that is missing."""
    width = max(len(finding.check) for finding in findings)
    indent = " " * (width + 3)
    fold = textwrap.TextWrapper(
        shutil.get_terminal_size().columns,
        initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False,
    )  # fmt: skip
    lines = []
    for finding in findings:
        sign, colour = SIGNS[finding.level]
        message = fold.fill(finding.message).lstrip()
        lines.append(f"{click.style(sign, fg=colour)} {finding.check:<{width}} {message}")
        if finding.remedy:
            lines.append(click.style(fold.fill(f"→ {finding.remedy}"), fg=colour))
    click.echo("\n".join(lines), color=False if os.environ.get("NO_COLOR") else None)
