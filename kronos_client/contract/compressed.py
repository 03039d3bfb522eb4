"""Texts that Redis keeps for feeds, compressed by the words that all have: short ones would repeat them."""

import zlib
from typing import Final

WORDS: Final = (
    b'"volume","amount"],"is_aware":false,"like":"2024-01-01 00:00:00"},"timezone":null,"num_corrections":'
    b'0,"num_restarts":0}{"form":{"columns":["open","high","low","close","volume","amount"],"is_aware":tru'
    b'e,"like":"2024-01-01T00:00:00+00:00"},"blocks":[["",64,1704067200000000],["",16,17"],["",4,17"],["",'
    b'1,17"]],"last":17{"series":"","bars":{"hash":"","num_bars":512,"first":"2024-01-01T00:00:00Z","last"'
    b':"2024-01-01T00:00:00-04:00"},"options":{"pred_len":12,"sampling":{"sample_count":100},"output":{"qu'
    b'antiles":[0.025,0.1,0.25,0.5,0.75,0.9,0.975]},"events":["close>last at end"],"calendar":"","timezone'
    b'":"America/New_York"},"seed":,"engine":"torch","device":"cuda:0","version":"0.1.0","feed":"","calibr'
    b'ation":null,"widened_by":[[],"forecast":"","drift":"too_narrow","failure":{"code":"","message":"","f'
    b'ield":null,"details":{"prompt_bars":,"statistics":{"events":[{"event":"close>last at end","probabili'
    b'ty":0.{"series":"","version":,"job_id":"feed-","last_time":"2024-01-01T00:00:00+00:00","last":170406'
    b'7200000000,"last_close":,"appended_at":17,"next_ends_at":17.0,"forecast":{"id":"","timestamps":["202'
    b'4-01-01T00:00:00+00:00","2024-01-01T00:05:00+00:00"],"timestamps_from":"the lookback\'s spacing, with'
    b'out breaks","timezone":"UTC","mean":{"close":[]},"quantiles":{"0.025":{"close":[]},"0.1":{"close":[]'
    b'},"0.25":{"close":[]},"0.5":{"close":[]},"0.75":{"close":[]},"0.9":{"close":[]},"0.975":{"close":[]}'
    b'},"seed":,"lookback":512},"model":{"id":"NeoQuasar/Kronos-small","revision":null,"tokenizer_id":"Neo'
    b'Quasar/Kronos-Tokenizer-base","tokenizer_revision":null},"device":"cpu","engine":"native","warnings"'
    b':["kronos-tiny was trained on synthetic candles: for trying the service, not for trading."]}'
)
"""Never changes: what is stored could not be read."""


def compressed(text: str) -> bytes:
    """The bytes of a text."""
    packer = zlib.compressobj(level=1, zdict=WORDS)
    return packer.compress(text.encode()) + packer.flush()


def decompressed(content: bytes) -> tuple[bytes, bytes]:
    """The text of ``compressed``, and the bytes after it. Raises zlib.error if another program wrote them."""
    opened = zlib.decompressobj(zdict=WORDS)
    return opened.decompress(content), opened.unused_data
