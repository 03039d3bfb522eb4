"""Job ids: a new one for each request, or always the same for an Idempotency-Key."""

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
        description="the same key and content give the same job; other content gives 409",
    ),
]


async def job_id_of(request: Request, key: IdempotencyKey = None) -> str:
    """The id of the request's job. It depends on the Idempotency-Key, the address and the bearer key."""
    if key is None:
        return str(uuid.uuid4())
    parts = (request.url.path, request.headers.get("authorization", ""), key)
    # The lengths make sure that different parts never give the same text.
    text = "".join(f"{len(part)}:{part}" for part in parts)
    return IDEMPOTENT_PREFIX + hashlib.sha256(text.encode()).hexdigest()[:ID_HEX_CHARS]


JobId = Annotated[str, Depends(job_id_of)]


async def _may_be_repeated(key: IdempotencyKey = None) -> bool:
    """Whether the same job may have been sent before."""
    return key is not None


MayBeRepeated = Annotated[bool, Depends(_may_be_repeated)]
