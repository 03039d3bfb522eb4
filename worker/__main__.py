"""``python -m worker``: the same commands as ``./kronos``."""

from worker.cli import cli

cli(prog_name="kronos")
