"""``make_server`` puts all tools into one server. Each error is JSON with a code and what to do."""

from typing import Any, Final

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import MCPServerError, ResourceError, ToolError, UnexpectedToolError
from pydantic import ValidationError
from pydantic_core import to_json

from kronos_client import __version__
from kronos_client.contract.errors import ErrorCode, JobError, refusal
from kronos_client.mcp import feeds, forecasts, running
from kronos_client.mcp.service import Service
from kronos_model.errors import KronosError

SUBJECTS: Final = (forecasts, running, feeds)
INSTRUCTIONS: Final = (
    "Forecasts of candlesticks as distributions over sample paths. Answers are summaries; links have more. "
    "Tell the user each `caution` and `warnings`: some models are only for trying the service. Only a "
    "backtest shows whether a model is any good on these candles: run one before anybody relies on a "
    "forecast. An error has a `code`, and its `message` says what to do. Nothing here is advice to trade."
)


def make_server(service: Service) -> MCPServer[Any]:
    """A server with the tools of all subjects."""
    options: Any = {"log_level": "WARNING", "subscriptions": False}
    server = _CodedServer("kronos", "Kronos", instructions=INSTRUCTIONS, version=__version__, **options)
    for subject in SUBJECTS:
        subject.add(server, service)
    return server


class _CodedServer(MCPServer[Any]):
    """A server whose tools and resources may raise JobError and KronosError."""

    async def call_tool(self, name: str, arguments: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        for tool in await self.list_tools():
            if tool.name == name and (unknown := arguments.keys() - tool.input_schema["properties"].keys()):
                text = f"{min(unknown)} is no argument of {name}: remove it or check its spelling"
                raise ToolError(_text(JobError(ErrorCode.UNKNOWN_FIELD, text, min(unknown))))
        try:
            return await super().call_tool(name, arguments, *args, **kwargs)
        except ToolError as error:
            raise ToolError(_coded(error)) from None

    async def read_resource(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return await super().read_resource(*args, **kwargs)
        except ResourceError as error:
            raise ResourceError(_coded(error)) from None


def _coded(error: MCPServerError) -> str:
    """The text of an error's cause. Raises an error that is a defect, which the SDK logs."""
    cause = error.__cause__
    while cause is not None and not isinstance(cause, JobError | KronosError | ValidationError):
        cause = cause.__cause__
    if isinstance(cause, KronosError):
        cause = JobError.from_kronos(cause)
    elif isinstance(cause, ValidationError) and not isinstance(error, UnexpectedToolError):
        cause = refusal(cause)
    elif cause is None and type(error) in (ToolError, ResourceError):
        cause = JobError(ErrorCode.INVALID_INPUT, str(error))
    if not isinstance(cause, JobError):
        raise error
    return _text(cause)


def _text(error: JobError) -> str:
    names = ("code", "message", "field", "details")
    return to_json({name: value for name in names if (value := getattr(error, name))}).decode()
