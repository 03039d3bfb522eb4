"""ApiService: what the tools need, with the keys' scopes and files of the data folder only."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from mcp_types import CallToolResult
from starlette.requests import Request

from api_stub.backend import Backend
from api_stub.problems import HttpError
from api_stub.routes.candles import read_path
from api_stub.scopes import check_scope, key_of
from api_stub.uploads.dataset_folder import data_folder, dataset_path, stored_files
from kronos_client.contract.errors import JobError
from kronos_client.core.options import DataSource
from kronos_client.mcp.service import MAX_WAIT_S, AnyContext, FileCandles, Service, Tool, answer
from kronos_model.bars.files.options import ReadOptions
from kronos_model.bars.missing import Missing

MAX_LISTED: Final = 100


class ApiService(Service):
    """The service of an API. Files are read as uploaded ones are, in a process of their own."""

    def __init__(self, backend: Backend) -> None:
        settings = backend.settings
        wait_s = min(settings.api_wait_s, MAX_WAIT_S)
        super().__init__(backend.core, backend.dispatcher.redis, settings.model_folder, wait_s)
        self._backend = backend

    @property
    def tools(self) -> Sequence[Tool]:
        return (self.list_files,)

    def allow(self, context: AnyContext, *scopes: str) -> str:
        request = context.request_context.request
        assert isinstance(request, Request), "the transport is HTTP"
        with _as_job_error():
            check_scope(request, *scopes)
        return key_of(request.scope)

    async def candles(self, file: str, instrument: str | None, missing: Missing) -> FileCandles:
        with _as_job_error():
            path = await self._backend.call(dataset_path, data_folder(self._backend.settings), file)
        wanted = {"instrument": instrument, "max_bars": self._backend.settings.max_bars}
        content = await read_path(path, file, self._backend, ReadOptions(missing=missing), wanted)
        columns = dict(content["series"])
        name, zone = columns.pop("id"), columns.pop("timezone", None)
        return FileCandles(name, zone, columns, [*content["warnings"], *content["bad_rows"]])

    async def data(self, files: Sequence[str]) -> DataSource:
        folder = data_folder(self._backend.settings)
        with _as_job_error():
            for file in files:
                await self._backend.call(dataset_path, folder, file)
        return list(files)

    async def list_files(self, context: AnyContext) -> CallToolResult:
        """The candle files that forecast_file and run_backtest may name."""
        self.allow(context, "predict", "train")
        found = await self._backend.call(stored_files, data_folder(self._backend.settings))
        return answer({"files": [file.name for file in found[:MAX_LISTED]], "total": len(found)})


@contextmanager
def _as_job_error() -> Iterator[None]:
    """Errors of requests with the same code, as tools raise them."""
    try:
        yield
    except HttpError as error:
        raise JobError(error.code, error.detail, error.field, error.details) from None
