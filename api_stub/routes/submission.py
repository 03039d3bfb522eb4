"""How a request submits its jobs: under which id, and with which address in the answer."""

import hashlib
import uuid
from dataclasses import dataclass
from typing import Annotated, Final

from fastapi import Depends, Header, Request

from api_stub.routes.scopes import key_of
from kronos_client.contract.names import MAX_ID_CHARS

IDEMPOTENT_PREFIX: Final = "idem-"
ID_HEX_CHARS: Final = 40

IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=MAX_ID_CHARS,
        description="the same key and content give the same job; other content gives 409",
    ),
]


@dataclass(frozen=True)
class Submission:
    """A request's submission of jobs.

    Attributes:
        job_id: A new id, or always the same for an Idempotency-Key.
        scope: Within it, equal jobs may be shared: the bearer key. None if the request has a key of its own.
        is_repeatable: Whether a repeated request finds the same job, which may have been sent before.
        root: The prefix of every address in the answer, such as ``/kronos``, or an empty string.
    """

    job_id: str
    is_repeatable: bool
    root: str
    scope: str | None = None


# async, because FastAPI runs sync dependencies on threads.
async def _submission(request: Request, key: IdempotencyKey = None) -> Submission:
    root = request.scope.get("root_path", "").rstrip("/")
    bearer = key_of(request.scope)
    if key is None:
        return Submission(str(uuid.uuid4()), False, root, scope=bearer)
    parts = (request.url.path, bearer, key)
    # The lengths make sure that different parts never give the same text.
    text = "".join(f"{len(part)}:{part}" for part in parts)
    job_id = IDEMPOTENT_PREFIX + hashlib.sha256(text.encode()).hexdigest()[:ID_HEX_CHARS]
    return Submission(job_id, True, root)


SubmissionDependency = Annotated[Submission, Depends(_submission)]
