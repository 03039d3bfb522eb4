"""Service: what tools need of the place they run in. ``answer`` and ``unfinished``: what they return."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from mcp.server.mcpserver import Context
from mcp_types import CallToolResult, ResourceLink, TextContent, ToolAnnotations
from pydantic import BaseModel
from pydantic_core import to_json
from redis import Redis

from kronos_client.contract import states
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.core.core import Core
from kronos_client.core.kinds import JobKind
from kronos_client.core.options import DataSource
from kronos_client.core.stored import Stored
from kronos_model.bars.missing import Missing

MAX_LISTED: Final = 50
"""The most models, workers or files in one answer."""
MAX_WAIT_S: Final = 45.0
"""Seconds that a tool waits for a job. Many clients give up after 60."""
READS: Final[Any] = {"annotations": ToolAnnotations(read_only_hint=True), "structured_output": False}
STARTS: Final[Any] = {"annotations": ToolAnnotations(destructive_hint=False), "structured_output": False}
"""Arguments of ``MCPServer.tool`` for tools that only read, and for those that start a job."""

Result = TypeVar("Result", bound=BaseModel)
AnyContext = Context[Any, Any]


class FileCandles(NamedTuple):
    """The last bars of one instrument of a file, as columns, and what is odd about the file."""

    name: str
    timezone: str | None
    columns: dict[str, Any]
    warnings: Sequence[str]


class Service(ABC):
    """Sends jobs and reads files. ``model_folder`` has the registered models."""

    def __init__(self, core: Core, redis: Redis, model_folder: Path | None, wait_s: float) -> None:
        self.core, self.redis, self.model_folder = core, redis, model_folder
        self.wait_s = min(wait_s, MAX_WAIT_S)

    @abstractmethod
    def allow(self, context: AnyContext, *scopes: str) -> str:
        """The scope within which equal jobs of this caller may be shared.

        Raises:
            JobError: The caller has none of these scopes.
        """

    @abstractmethod
    def feed_name(self, context: AnyContext, name: str) -> str:
        """The name in Redis of a feed of this caller."""

    @abstractmethod
    async def candles(self, file: str, instrument: str | None, missing: Missing) -> FileCandles:
        """The last bars of a file. Raises JobError or KronosError."""

    @abstractmethod
    async def data(self, files: Sequence[str]) -> DataSource:
        """The data of a backtest of these files. Raises JobError or KronosError."""


def answer(content: dict[str, Any], uri: str | None = None, mime_type: str = "") -> CallToolResult:
    """A tool's answer: the content as JSON, without what is unknown, and a link to all of it.

    An empty list stays: it says that there are none.
    """
    known = {name: value for name, value in content.items() if value not in (None, (), {})}
    text = TextContent(type="text", text=to_json(known).decode())
    links = [] if uri is None else [ResourceLink(uri=uri, mime_type=mime_type, name="all of it")]
    return CallToolResult(content=[text, *links], structured_content=known)


def unfinished(job_id: str, stored: Stored, tool: str, **progress: Any) -> CallToolResult:
    """The answer about a job that has not ended, which ``tool`` reads later."""
    state = "queued" if stored.status == states.PENDING else "running"
    text = f"It goes on. Call {tool} with this job_id for the result; explain_job says what it waits for."
    return answer({"job_id": job_id, "state": state, "waiting": stored.waiting, **progress, "next": text})


async def finished(service: Service, kind: JobKind[Any, Result], job_id: str) -> Result:
    """The result of a job. Raises JobError: TIMEOUT if it is still to come, and as ``kind.result_of``."""
    result = kind.result_of(await service.core.events.read(job_id))
    if result is None:
        raise JobError(ErrorCode.TIMEOUT, f"the job has not ended: call get_{kind.name} until it is done")
    return result
