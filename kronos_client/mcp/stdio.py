"""The tools for one user, over standard input and output: with the user's own files and rights."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kronos_client.core.core import Core
from kronos_client.core.dispatcher import RedisDispatcher
from kronos_client.core.options import DataSource
from kronos_client.core.result_store import RedisResultStore
from kronos_client.mcp.server import make_server
from kronos_client.mcp.service import AnyContext, FileCandles, Service
from kronos_client.settings import ServiceSettings
from kronos_model.bars.missing import Missing


async def serve(settings: ServiceSettings) -> None:
    """Serve until standard input ends."""
    dispatcher = RedisDispatcher(settings)
    core = Core(settings, dispatcher, RedisResultStore(settings, dispatcher.redis))
    try:
        await make_server(OwnFiles(core, dispatcher.redis, settings.model_folder)).run_stdio_async()
    finally:
        await core.close()
        dispatcher.close()


class OwnFiles(Service):
    """Reads the user's own files. A backtest carries the candles, since the workers may be elsewhere."""

    def allow(self, context: AnyContext, *scopes: str) -> str:
        return ""

    async def candles(self, file: str, instrument: str | None, missing: Missing) -> FileCandles:
        found: FileCandles = await self.core.call(
            _read, file, instrument, missing, self.core.settings.max_bars
        )
        return found

    async def data(self, files: Sequence[str]) -> DataSource:
        data: Mapping[str, Any] = await self.core.call(
            _instruments, files, self.core.settings.max_inline_bars
        )
        return data


def _read(file: str, instrument: str | None, missing: Missing, max_bars: int) -> FileCandles:
    """The last bars of a file. Raises KronosError. Blocks."""
    from kronos_model.bars.files.lookback import CandleFile  # pandas and pyarrow
    from kronos_model.bars.files.options import NO_OPTIONS

    path = Path(file).expanduser()
    found = CandleFile(path, replace(NO_OPTIONS, missing=missing)).last(max_bars, instrument)
    columns = {str(name): found.candles[name].tolist() for name in found.candles}
    return FileCandles(found.name or path.name, found.timezone, columns, found.warnings)


def _instruments(files: Sequence[str], max_bars: int) -> dict[str, Any]:
    """The candles of these files by the instruments' names. Raises KronosError. Blocks."""
    from kronos_model.bars.files.find import distinct_names, find_files
    from kronos_model.bars.files.lookback import CandleFile

    paths = list(find_files([str(Path(file).expanduser()) for file in files]))
    found: dict[str, Any] = {}
    for path, stem in zip(paths, distinct_names(paths), strict=True):
        opened = CandleFile(path)
        for name in opened.instruments:
            found[name or stem] = opened.last(max_bars + 1, name or None).candles  # one more: LIMIT_EXCEEDED
    return found
