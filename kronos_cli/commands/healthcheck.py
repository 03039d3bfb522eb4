"""``kronos healthcheck``."""

import click

from kronos_cli.checks import is_ok
from kronos_cli.checks.installation import worker_here
from kronos_cli.commands.check import print_json
from kronos_cli.settings import get_settings


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the finding as JSON, like check.")
def healthcheck(as_json: bool) -> None:
    """Exit with 0 if a worker on this host is ready, else with 1.

    The reason goes to standard error. `check --worker` checks the same.
    """
    finding = worker_here(get_settings())
    if as_json:
        print_json([finding])
        raise SystemExit(0 if is_ok([finding]) else 1)
    if finding.level != "ok":
        raise click.ClickException(finding.message)
