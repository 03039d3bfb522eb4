"""``kronos mcp``."""

import asyncio
from importlib.util import find_spec

import click

from kronos_cli.settings import get_settings


@click.command()
def mcp() -> None:
    """Serve tools for an agent over standard input and output, by the Model Context Protocol.

    The agent's program starts this command. Its tools forecast your own files and candles, give chances of
    events, run backtests, list models and workers, and explain jobs, with the workers at KRONOS_REDIS_URL.
    Over HTTP, `kronos api` serves the same with KRONOS_API_MCP=true.
    """
    if find_spec("mcp") is None:
        raise ModuleNotFoundError("No module named 'mcp'", name="mcp")
    from kronos_client.mcp.stdio import serve

    asyncio.run(serve(get_settings()))
