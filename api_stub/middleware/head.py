"""Answers HEAD wherever GET is answered, without the body."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api_stub.addresses import address_of


class Head:
    """Passes HEAD on as GET, except for event streams, which would not end."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD" or address_of(scope).endswith("/events"):
            await self._app(scope, receive, send)
            return

        async def send_head(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        scope["method"] = "GET"
        try:
            await self._app(scope, receive, send_head)
        finally:
            scope["method"] = "HEAD"  # for the log and the metrics
