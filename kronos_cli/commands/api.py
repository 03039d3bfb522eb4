"""``kronos api``."""

import os
import runpy
from importlib.util import find_spec

import click

PACKAGES = ("fastapi", "uvicorn", "api_stub")


@click.command()
@click.option("--host", help="Address to serve; overrides KRONOS_API_HOST.  [default: 127.0.0.1]")
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Port to serve; overrides KRONOS_API_PORT.  [default: 8000]"
)
def api(host: str | None, port: int | None) -> None:
    """Serve the HTTP API and its web page.

    An address that other machines can reach needs KRONOS_API_KEYS.
    """
    if missing := [package for package in PACKAGES if find_spec(package) is None]:
        raise ModuleNotFoundError(f"No module named {missing[0]!r}", name=missing[0])
    if host is not None:
        os.environ["KRONOS_API_HOST"] = host
    if port is not None:
        os.environ["KRONOS_API_PORT"] = str(port)
    runpy.run_module("api_stub", run_name="__main__", alter_sys=True)
