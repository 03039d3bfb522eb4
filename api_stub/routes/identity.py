"""The id of a job: a new one, or, of a request that has an Idempotency-Key, always the same."""

import hashlib
import uuid
from typing import Annotated, Final

from fastapi import Depends, Header, Request

from kronos_client.contract.names import MAX_ID_CHARS

IDEMPOTENT_PREFIX: Final = "idem-"
ID_HEX_CHARS: Final = 40

IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=MAX_ID_CHARS,
        description="the same key with the same content gives the same job; with other content it is 409",
    ),
]


async def job_id_of(request: Request, key: IdempotencyKey = None) -> str:
    """A key counts for the address that it is sent to, and for the bearer key that it is sent with."""
    if key is None:
        return str(uuid.uuid4())
    parts = (request.url.path, request.headers.get("authorization", ""), key)
    # With lengths, so that no two lists of parts are one text.
    text = "".join(f"{len(part)}:{part}" for part in parts)
    return IDEMPOTENT_PREFIX + hashlib.sha256(text.encode()).hexdigest()[:ID_HEX_CHARS]


JobId = Annotated[str, Depends(job_id_of)]


async def _may_be_repeated(key: IdempotencyKey = None) -> bool:
    """Whether the same job may have been sent before."""
    return key is not None


MayBeRepeated = Annotated[bool, Depends(_may_be_repeated)]
