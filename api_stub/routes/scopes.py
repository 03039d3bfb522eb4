"""Scopes: what a key allows. A key without scopes allows everything."""

from typing import Any, Final, Literal, get_args

from fastapi import Depends, Request

from api_stub.problems import HttpCode, HttpError

KeyScope = Literal["predict", "train", "metrics", "admin"]

SCOPES: Final[frozenset[KeyScope]] = frozenset(get_args(KeyScope))


def needs(scope: KeyScope) -> Any:
    """A route's dependency: refuses a key that has neither this scope nor admin."""

    # async, because FastAPI runs sync dependencies on threads.
    async def check(request: Request) -> None:
        granted = getattr(request.state, "scopes", SCOPES)  # the middleware Keys sets them
        if not granted & {scope, "admin"}:
            message = (
                f"this key lacks the scope {scope}: use another, or add it to the key in KRONOS_API_KEYS"
            )
            raise HttpError(HttpCode.FORBIDDEN, message, details={"scope": scope})

    return Depends(check)
