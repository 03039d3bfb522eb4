"""``python -m kronos_cli``: the same commands as ``./kronos``."""

from kronos_cli.main import cli

cli(prog_name="kronos")
