"""Seeds derived from texts and from other seeds, the same on every machine and in every language.

Each is the SHA-256 of a UTF-8 text: the digest's first eight bytes, read big-endian, without the topmost bit.
``kronos_model/engine/decoding/noise.py`` makes the noise of each path from a series' seed.
"""

from hashlib import sha256
from typing import Final

MAX_SEED: Final = 2**63 - 1


def seed_from_text(text: str) -> int:
    """A seed in 0…2⁶³−1 from a text, for example a job's id."""
    digest = sha256(text.encode("utf-8", errors="surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") & MAX_SEED


def derive_series_seed(seed: int, index: int) -> int:
    """The seed of series ``index`` in a job with ``seed``.

    Series 0 has the job's own seed. Series i has ``seed_from_text`` of ``"<seed>:<i>"``, both as decimal
    numbers: ``"7:1"`` for series 1 of seed 7.

    Raises ValueError if seed is not in 0…2⁶³−1 or index is negative.
    """
    if not 0 <= seed <= MAX_SEED:
        raise ValueError(f"a seed must be in 0…2**63-1, not {seed}")
    if index < 0:
        raise ValueError(f"a series index must not be negative, but is {index}")
    return seed if index == 0 else seed_from_text(f"{seed}:{index}")
