"""A stand-in for an exchange, on loopback: bars of one second in the form of Binance's API and websocket."""

import json
import threading
import time
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pandas as pd
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

from kronos_model.bars.synthetic import candles

NUM_BARS, NUM_PAST = 3000, 700
SYMBOLS = {"BTCUSDT": ("BTC", "USDT"), "ETHUSDT": ("ETH", "USDT"), "SOLUSDT": ("SOL", "USDT")}
INVALID = {"code": -1121, "msg": "Invalid symbol."}


class Exchange:
    """Answers until the block ends; bars come by the clock.

    Attributes:
        is_down: It answers nothing, and ends connections.
        delisted: Symbols that it refuses.
    """

    def __init__(self) -> None:
        self.is_down, self.delisted = False, set[str]()
        self._began = int(time.time()) - NUM_PAST
        self._tables = {
            symbol: pd.DataFrame(candles(seed=seed, bars=NUM_BARS).columns)
            for seed, symbol in enumerate(SYMBOLS)
        }
        self._server = serve(self._send, "127.0.0.1", 0, process_request=self._answer)
        self.address = f"127.0.0.1:{self._server.socket.getsockname()[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def __enter__(self) -> "Exchange":
        return self

    def __exit__(self, *_: object) -> None:
        self.is_down = True
        self._server.shutdown()

    def halve_prices(self) -> None:
        """All of the past too, as after a split."""
        for table in self._tables.values():
            table[["open", "high", "low", "close"]] /= 2

    def bars(self, symbol: str) -> pd.DataFrame:
        """All closed bars, by their time."""
        times = pd.to_datetime(range(self._began, self._began + NUM_BARS), unit="s", utc=True)
        return self._tables[symbol].set_index(times)[: self._num_closed()]

    def _num_closed(self) -> int:
        return int(time.time()) - self._began

    def _kline(self, symbol: str, at: int, is_closed: bool) -> dict[str, Any]:
        """One that has not closed has had no more than its first trade."""
        bar = self._tables[symbol].iloc[at].to_dict()
        if not is_closed:
            bar |= {
                "high": bar["open"],
                "low": bar["open"],
                "close": bar["open"],
                "volume": 1.0,
                "amount": 1.0,
            }
        began_ms = (self._began + at) * 1000
        kline = {"t": began_ms, "T": began_ms + 999, "s": symbol, "i": "1s", "x": is_closed}
        names = {"o": "open", "c": "close", "h": "high", "l": "low", "v": "volume", "q": "amount"}
        return kline | {key: repr(bar[name]) for key, name in names.items()}

    def _answer(self, connection: ServerConnection, request: Request) -> Response | None:
        url = urlsplit(request.path)
        if self.is_down:
            return connection.respond(503, "down")
        if url.path == "/stream":
            return None
        if url.path == "/api/v3/exchangeInfo":
            told = {"status": "TRADING", "permissions": ["SPOT"], "isSpotTradingAllowed": True}
            symbols = [
                {"symbol": symbol, "baseAsset": base, "quoteAsset": quote} | told
                for symbol, (base, quote) in SYMBOLS.items()
            ]
            return connection.respond(200, json.dumps({"symbols": symbols}))
        query = {name: value for name, (value,) in parse_qs(url.query).items()}
        assert (url.path, query["interval"]) == ("/api/v3/klines", "1s")
        if (symbol := query["symbol"]) in self.delisted:
            return connection.respond(400, json.dumps(INVALID))
        num_closed, limit = self._num_closed(), int(query["limit"])
        first = (
            int(query["startTime"]) // 1000 - self._began if "startTime" in query else num_closed + 1 - limit
        )
        rows = [self._kline(symbol, at, at < num_closed) for at in range(max(first, 0), num_closed + 1)]
        return connection.respond(200, json.dumps([[row[key] for key in "tohlcvTq"] for row in rows[:limit]]))

    def _send(self, socket: ServerConnection) -> None:
        assert socket.request is not None
        (streams,) = parse_qs(urlsplit(socket.request.path).query)["streams"]
        symbols = [name.partition("@")[0].upper() for name in streams.split("/")]
        at = self._num_closed()
        try:
            while not self.is_down:
                num_closed = self._num_closed()
                while at <= num_closed:
                    for symbol in symbols:
                        kline = self._kline(symbol, at, at < num_closed)
                        data = {"e": "kline", "E": int(time.time() * 1000), "s": symbol, "k": kline}
                        socket.send(json.dumps({"stream": f"{symbol.lower()}@kline_1s", "data": data}))
                    if at == num_closed:
                        break
                    at += 1
                time.sleep(0.1)
        except ConnectionClosed:
            return
