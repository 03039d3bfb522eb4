"""``kronos mcp``: the tools for agents, with the user's own files and rights."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from kronos_cli.settings import CliSettings, get_settings
from kronos_client.core.core import Core
from kronos_client.core.dispatcher import RedisDispatcher
from kronos_client.core.result_store import RedisResultStore
from kronos_client.mcp.server import make_server
from kronos_client.mcp.service import MAX_WAIT_S, AnyContext, FileCandles, Service
from kronos_model.bars.files.find import distinct_names, find_files, series_name
from kronos_model.bars.files.lookback import CandleFile
from kronos_model.bars.files.options import ReadOptions
from kronos_model.bars.missing import Missing


@click.command()
def mcp() -> None:
    """Serve tools for an agent over standard input and output, by the Model Context Protocol.

    The agent's program starts this command. Its tools forecast your own files and candles, give chances of
    events, run backtests, list models and workers, and explain jobs, with the workers at KRONOS_REDIS_URL.
    Over HTTP, `kronos api` serves the same with KRONOS_API_MCP=true.
    """
    asyncio.run(_serve(get_settings()))


async def _serve(settings: CliSettings) -> None:
    dispatcher = RedisDispatcher(settings)
    core = Core(settings, dispatcher, RedisResultStore(settings, dispatcher.redis))
    try:
        service = _OwnFiles(core, dispatcher.redis, settings.model_folder, MAX_WAIT_S)
        await make_server(service).run_stdio_async()
    finally:
        await core.close()
        dispatcher.close()


class _OwnFiles(Service):
    """Reads the user's own files. A backtest carries the candles, since the workers may be elsewhere."""

    def allow(self, context: AnyContext, *scopes: str) -> str:
        return ""

    def feed_name(self, context: AnyContext, name: str) -> str:
        return name

    async def candles(self, file: str, instrument: str | None, missing: Missing) -> FileCandles:
        max_bars, path = self.core.settings.max_bars, Path(file).expanduser()
        opened = await asyncio.to_thread(CandleFile, path, ReadOptions(missing=missing))
        found = opened.last(max_bars, instrument)
        columns = {str(name): found.candles[name].tolist() for name in found.candles}
        return FileCandles(found.name or series_name(path.name), found.timezone, columns, found.warnings)

    async def data(self, files: Sequence[str]) -> dict[str, Any]:
        paths = list(find_files([str(Path(file).expanduser()) for file in files]))
        candles: dict[str, Any] = {}
        most = self.core.settings.max_inline_bars + 1  # one more than a job may carry, which is refused
        for stem, path in zip(distinct_names(paths), paths, strict=True):
            opened = await asyncio.to_thread(CandleFile, path)
            candles |= {name or stem: opened.last(most, name or None).candles for name in opened.instruments}
        return candles
