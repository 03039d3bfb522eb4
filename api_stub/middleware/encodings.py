"""Content-Encoding: compressed requests are decoded, answers compressed, with gzip or zstd."""

import sys
import zlib
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final, Literal, Protocol

from anyio.to_thread import run_sync
from starlette.datastructures import Headers
from starlette.middleware.gzip import DEFAULT_EXCLUDED_CONTENT_TYPES, GZipResponder, IdentityResponder
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api_stub.problems import HttpCode, HttpError, closing
from kronos_model.bars.files.content import MAX_RATIO, is_bomb

if sys.version_info >= (3, 14):
    from compression.zstd import DecompressionParameter, ZstdCompressor, ZstdDecompressor, ZstdError
else:
    from backports.zstd import DecompressionParameter, ZstdCompressor, ZstdDecompressor, ZstdError

PIECE_BYTES: Final = 2**20
"""Most bytes that are decoded at once. A small body may decode to very many."""
MAX_WINDOW_LOG: Final = 23
"""Memory of a zstd decoder, as a power of two: the most that RFC 9659 allows over HTTP."""
MIN_BYTES: Final = 1024
THREAD_BYTES: Final = 2**17
"""Larger parts are compressed on a thread."""
GZIP_LEVEL: Final = 5
PACKED: Final = (b"\x1f\x8b", b"PAR1")
"""First bytes of files that are packed already."""
NOT_COMPRESSED: Final = (*DEFAULT_EXCLUDED_CONTENT_TYPES, "application/vnd.apache.parquet")


class _Decoder(Protocol):
    """The interface of Python's decompressors of one frame."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class _Gunzip:
    """zlib's decoder with that interface, which Python's zlib has only from 3.12 on, and not in public."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=31)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        piece = self._inner.decompress(self._inner.unconsumed_tail + data, max_length)
        self.needs_input = not self._inner.unconsumed_tail and len(piece) < max_length
        return piece


def _unzstd() -> _Decoder:
    return ZstdDecompressor(options={DecompressionParameter.window_log_max: MAX_WINDOW_LOG})


DECODERS: Final[Mapping[str, Any]] = {"gzip": _Gunzip, "x-gzip": _Gunzip, "zstd": _unzstd}


class Decoding:
    """Decodes request bodies while they arrive. Limits on bodies count what it passes on."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        encoding = ""
        if scope["type"] == "http":
            encoding = Headers(scope=scope).get("content-encoding", "").strip().lower()
        if encoding in ("", "identity"):
            await self._app(scope, receive, send)
        elif encoding not in DECODERS:
            message = f"the body has the Content-Encoding {encoding[:40]!a}: send it with gzip, zstd or none"
            headers = {"Accept-Encoding": "gzip, zstd", "Connection": "close"}
            refusal = HttpError(HttpCode.UNSUPPORTED_MEDIA_TYPE, message, headers=headers)
            await refusal.response()(scope, receive, send)
        else:
            await self._app(scope, _decoded(receive, encoding), send)


def _decoded(receive: Receive, encoding: str) -> Receive:
    """``receive`` with decoded bodies. It raises HttpError for one that cannot be decoded."""
    decoder: _Decoder = DECODERS[encoding]()
    head, num_coded, num_decoded = b"", 0, 0
    messages: Iterator[Message] = iter(())
    damaged = f"the body is not complete and valid {encoding}, as its Content-Encoding says"

    def decode(data: bytes, more_body: bool) -> Iterator[Message]:
        nonlocal decoder, head, num_coded, num_decoded
        num_coded += len(data)
        try:
            while data or not (decoder.needs_input or decoder.eof):
                if decoder.eof:  # a body may have several frames
                    decoder = DECODERS[encoding]()
                piece = decoder.decompress(data, PIECE_BYTES)
                data = decoder.unused_data if decoder.eof else b""
                head = (head + piece[:4])[:4]
                if head.startswith(PACKED):
                    text = "the file is packed already: send it without Content-Encoding"
                    raise closing(HttpCode.UNSUPPORTED_MEDIA_TYPE, text)
                num_decoded += len(piece)
                if is_bomb(num_decoded, num_coded):
                    text = f"the body decodes to more than {MAX_RATIO} times its size: send it plain"
                    raise closing(HttpCode.BODY_TOO_LARGE, text)
                yield {"type": "http.request", "body": piece, "more_body": True}
        except (zlib.error, ZstdError):
            raise closing(HttpCode.BAD_REQUEST, damaged) from None
        if num_coded and not more_body and not decoder.eof:
            raise closing(HttpCode.BAD_REQUEST, damaged)
        yield {"type": "http.request", "body": b"", "more_body": more_body}

    async def receive_decoded() -> Message:
        nonlocal messages
        if (message := next(messages, None)) is None:
            message = await receive()
            if message["type"] == "http.request":
                messages = decode(message.get("body", b""), message.get("more_body", False))
                message = next(messages)
        return message

    return receive_decoded


class ZstdResponder(IdentityResponder):
    """Compresses one answer with zstd, as Starlette's ``GZipResponder`` does with gzip."""

    content_encoding = "zstd"
    _compressor: ZstdCompressor | None = None

    async def apply_compression(self, body: bytes, *, more_body: bool) -> bytes:
        if self._compressor is None:
            self._compressor = ZstdCompressor()
        compress = self._compressor.compress
        mode: Literal[1, 2] = ZstdCompressor.FLUSH_BLOCK if more_body else ZstdCompressor.FLUSH_FRAME
        if len(body) >= THREAD_BYTES:
            return await run_sync(lambda: compress(body, mode))
        return compress(body, mode)


class Encoding:
    """Compresses answers for clients that accept it: with zstd if they do, else gzip."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        accepted = accepted_encodings(Headers(scope=scope).get("accept-encoding", ""))
        responder: type[IdentityResponder] | partial[GZipResponder] = IdentityResponder
        if "zstd" in accepted:
            responder = ZstdResponder
        elif "gzip" in accepted:
            responder = partial(GZipResponder, compresslevel=GZIP_LEVEL)
        await responder(self._app, MIN_BYTES, exclude_content_types=NOT_COMPRESSED)(scope, receive, send)


def accepted_encodings(header: str) -> set[str]:
    """The encodings in an Accept-Encoding header, without those of weight 0."""
    parts = (part.replace(" ", "").lower().partition(";q=") for part in header.split(","))
    return {name for name, _, weight in parts if weight.strip("0.") or not weight}
