"""``make_server`` puts all tools into one server. Each error is JSON with a code and what to do."""

from collections.abc import Iterable
from typing import Any, Final

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ToolError, UnexpectedToolError
from mcp_types import CallToolResult, InputRequiredResult, ToolAnnotations
from pydantic import AnyUrl, ValidationError
from pydantic_core import to_json

from kronos_client import __version__
from kronos_client.contract.errors import ErrorCode, JobError, refusal
from kronos_client.mcp.backtests import Backtests
from kronos_client.mcp.forecasts import Forecasts
from kronos_client.mcp.operation import Operation
from kronos_client.mcp.service import Service
from kronos_model.errors import KronosError

SUBJECTS: Final = (Forecasts, Backtests, Operation)
INSTRUCTIONS: Final = (
    "Forecasts of candlesticks (open, high, low, close, volume) as distributions over sample paths. Answers "
    "are summaries; their links have every bar. Tell the user each `caution` and `warnings`: some models are "
    "only for trying the service. Only a backtest shows whether a model is any good on these candles: run "
    "one before anybody relies on a forecast. An error has a `code`, and its `message` says what to do. "
    "Nothing here is advice to trade."
)
READS: Final = ToolAnnotations(read_only_hint=True, open_world_hint=False)
STARTS: Final = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)


def make_server(service: Service) -> "CodedServer":
    """A server with the tools of all subjects, and those of the service's own."""
    server = CodedServer(
        "kronos", title="Kronos", instructions=INSTRUCTIONS, version=__version__, log_level="WARNING",
        subscriptions=False,
    )  # fmt: skip
    subjects = [subject(service) for subject in SUBJECTS]
    for tool in (*(tool for subject in subjects for tool in subject.tools), *service.tools):
        name = getattr(tool, "__name__", "")
        hints = READS if name.startswith(("get_", "list_", "explain_")) else STARTS
        server.add_tool(tool, annotations=hints, structured_output=False)
    for resource in (resource for subject in subjects for resource in subject.resources):
        server.resource(resource.template, mime_type=resource.mime_type)(resource.read)
    return server


class CodedServer(MCPServer[Any]):
    """A server whose tools and resources may raise JobError and KronosError."""

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None
    ) -> CallToolResult | InputRequiredResult:
        """As MCPServer, which names neither codes nor the reasons of errors that it does not expect."""
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as error:
            cause = error.__cause__
            if isinstance(cause, ValidationError) and not isinstance(error, UnexpectedToolError):
                cause = refusal(cause)
            text = _coded(cause)
            if text is None and isinstance(error, UnexpectedToolError):
                raise
            raise ToolError(text or _text(JobError(ErrorCode.INVALID_INPUT, str(error)))) from None

    async def read_resource(
        self, uri: AnyUrl | str, context: Context[Any, Any] | None = None
    ) -> Iterable[Any] | InputRequiredResult:
        """As MCPServer, with the codes of errors."""
        try:
            return await super().read_resource(uri, context)
        except ResourceError as error:
            if (text := _coded(error.__cause__)) is None:
                raise
            raise ResourceError(text) from None


def _coded(error: BaseException | None) -> str | None:
    """The text of an error that has a code; None for any other."""
    while error is not None and not isinstance(error, JobError | KronosError):
        error = error.__cause__
    if isinstance(error, KronosError):
        error = JobError.from_kronos(error)
    return None if error is None else _text(error)


def _text(error: JobError) -> str:
    content = {"code": error.code, "message": error.message, "field": error.field, "details": error.details}
    return to_json({name: value for name, value in content.items() if value}).decode()
