"""How long a prediction request waits, by the header Prefer (RFC 7240) or the query."""

from dataclasses import dataclass
from typing import Annotated, Final

from fastapi import Depends, Header, Query

from api_stub.backend import BackendDependency

RESPOND_ASYNC: Final = "respond-async"


@dataclass(frozen=True)
class Preference:
    """How long a request waits for its forecast, and what it gets after that.

    Attributes:
        takes_job: Whether an unfinished forecast is answered with the job's address, not with an error.
    """

    wait_s: float
    takes_job: bool

    @property
    def headers(self) -> dict[str, str]:
        """The headers of an answer that has the job's address."""
        return {"Preference-Applied": RESPOND_ASYNC, "Retry-After": "1"}


# async, because FastAPI runs sync dependencies on threads.
async def _preference(
    backend: BackendDependency,
    prefer: Annotated[
        str | None,
        Header(
            description="`respond-async`: answer 202 with the job's address if the forecast is not done; "
            "`wait=10`: wait up to 10 seconds, by default `KRONOS_API_WAIT_S`, or 0 for `respond-async`",
            examples=["respond-async, wait=10"],
        ),
    ] = None,
    respond_async: Annotated[bool, Query(description="the same as `Prefer: respond-async`")] = False,
) -> Preference:
    parts = [part.partition(";")[0].partition("=") for part in (prefer or "").split(",")]
    given = {name.strip().lower(): value.strip(' "') for name, _, value in parts}
    takes_job = respond_async or RESPOND_ASYNC in given
    longest_s = backend.settings.api_wait_s
    wait = given.get("wait", "")
    # A preference that cannot be read is ignored, as RFC 7240 asks.
    if wait.isdecimal() and len(wait) < 10:
        return Preference(min(int(wait), longest_s), takes_job)
    return Preference(0 if takes_job else longest_s, takes_job)


PreferenceDependency = Annotated[Preference, Depends(_preference)]
