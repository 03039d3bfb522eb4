"""Service: what tools need of the place they run in. Answer: what a tool returns."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from mcp.server.mcpserver import Context
from mcp_types import CallToolResult, ResourceLink, TextContent
from pydantic import BaseModel, ValidationError
from pydantic_core import to_json
from redis import Redis

from kronos_client.contract import states
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import PROGRESS_STATE
from kronos_client.core.core import Core
from kronos_client.core.kinds import JobKind
from kronos_client.core.options import DataSource
from kronos_client.core.stored import Stored
from kronos_model.bars.missing import Missing

MAX_WAIT_S: Final = 45.0
"""Seconds that a tool waits for a job. Many clients give up after 60."""

Result = TypeVar("Result", bound=BaseModel)
AnyContext = Context[Any, Any]
Tool = Callable[..., Awaitable[CallToolResult]]


class FileCandles(NamedTuple):
    """The last bars of one instrument of a file, as columns, and what is odd about the file."""

    name: str
    timezone: str | None
    columns: dict[str, Any]
    warnings: Sequence[str] = ()


class Resource(NamedTuple):
    """A table or report that clients may read: a template of its address, and how to make it."""

    template: str
    mime_type: str
    read: Callable[[str, AnyContext], Awaitable[str]]


class Subject(ABC):
    """Tools about one subject."""

    def __init__(self, service: "Service") -> None:
        self.service = service

    @property
    @abstractmethod
    def tools(self) -> Sequence[Tool]:
        """The tools. The name, the arguments and the docstring of each are what agents see."""

    @property
    def resources(self) -> Sequence[Resource]:
        """What the tools' answers link to."""
        return ()


class Service(ABC):
    """Sends jobs and reads files. ``model_folder`` has the registered models."""

    def __init__(
        self, core: Core, redis: Redis, model_folder: Path | None, wait_s: float = MAX_WAIT_S
    ) -> None:
        self.core = core
        self.redis = redis
        self.model_folder = model_folder
        self.wait_s = wait_s

    @abstractmethod
    def allow(self, context: AnyContext, *scopes: str) -> str:
        """The scope within which equal jobs of this caller may be shared.

        Raises:
            JobError: The caller has none of these scopes.
        """

    @abstractmethod
    async def candles(self, file: str, instrument: str | None, missing: Missing) -> FileCandles:
        """The last bars of a file. Raises JobError."""

    @abstractmethod
    async def data(self, files: Sequence[str]) -> DataSource:
        """The data of a backtest of these files. Raises JobError."""

    @property
    def tools(self) -> Sequence[Tool]:
        """Tools that only this place has."""
        return ()


def answer(content: dict[str, Any], *links: tuple[str, str, str]) -> CallToolResult:
    """A tool's answer: the content as JSON without what is unknown, and links: address, type and title."""
    known = {name: value for name, value in content.items() if value not in (None, [], (), {}, "")}
    text = TextContent(type="text", text=to_json(known).decode())
    resources = [ResourceLink(uri=uri, mime_type=kind, name=title) for uri, kind, title in links]
    return CallToolResult(content=[text, *resources], structured_content=known)


def unfinished(job_id: str, stored: Stored, tool: str, **progress: Any) -> CallToolResult:
    """The answer about a job that has not ended, which ``tool`` reads later."""
    is_running = stored.status in (states.STARTED, PROGRESS_STATE)
    state = "running" if is_running else "queued"
    text = f"It goes on. Call {tool} with this job_id for the result; explain_job says what it waits for."
    return answer({"job_id": job_id, "state": state, "waiting": stored.waiting} | progress | {"next": text})


def result_of(kind: JobKind[Any, Result], stored: Stored) -> Result | None:
    """The result; None while it is still to come. Raises JobError: the job's own, or LOST."""
    try:
        return kind.result_of(stored)
    except ValidationError:
        message = f"no {kind.name} has that id: check it, and whether it is a forecast or a backtest"
        raise JobError(ErrorCode.LOST, message, "job_id") from None


def finished(kind: JobKind[Any, Result], stored: Stored, tool: str) -> Result:
    """The result. Raises JobError: TIMEOUT if it is still to come, and as ``result_of``."""
    result = result_of(kind, stored)
    if result is None:
        raise JobError(ErrorCode.TIMEOUT, f"the job has not ended: call {tool} until its state is done")
    return result
