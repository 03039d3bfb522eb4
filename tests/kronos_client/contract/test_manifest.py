"""The hash of a forecast in its manifest stays the same from version to version."""

from typing import Any

import pytest

from kronos_client.contract.compressed import decompressed
from kronos_client.contract.manifest import NOT_NUMBERS, BarsInfo, Manifest
from kronos_client.contract.model_info import ModelInfo, ResultModel
from kronos_client.contract.results import EventChance, SeriesForecast

MANIFEST = Manifest(
    series="a", bars=BarsInfo(hash="", num_bars=1, first="", last=""), options={}, seed=1,
    model=ModelInfo(id="m", revision=None, tokenizer_id="t", tokenizer_revision=None),
    engine=None, device="cpu", version="1", forecast="",
)  # fmt: skip
FORECAST: dict[str, Any] = {
    "id": "a",
    "timestamps": ("2024-01-02",),
    "mean": {"close": (1.5,)},
    "quantiles": {"0.5": {"close": (1.25,)}},
    "seed": 3,
}
CHANCE = EventChance(
    event="close>last", probability=0.5, standard_error=None, low=0, high=1, num_hits=1, num_paths=2
)


class Tomorrow(SeriesForecast):
    """A later version's, with one more number that a job may ask for."""

    skewness: tuple[float, ...] | None = None


@pytest.mark.parametrize("kind", [SeriesForecast, Tomorrow])
@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({}, "9c794055078712ad130c0a89"),
        ({"events": (CHANCE,), "paths": {"close": ((1.5,),)}}, "8defccda6094116005d68dfb"),
    ],
)
def test_kept_manifests_stay_equal(kind: type[ResultModel], changes: dict[str, Any], kept: str) -> None:
    told = kind(**FORECAST | changes | {"warnings": ("odd",), "lookback": 5})
    assert MANIFEST.with_hash(told).forecast == kept


def test_a_new_number_counts_once_it_is_there() -> None:
    hashes = {MANIFEST.with_hash(Tomorrow(**FORECAST, skewness=(value,))).forecast for value in (1.0, 2.0)}
    assert len(hashes) == 2


def test_what_is_no_number_is_a_field() -> None:
    assert SeriesForecast.model_fields.keys() >= NOT_NUMBERS


def test_what_earlier_versions_compressed_is_read():
    """The words never change."""
    stored = bytes.fromhex("783f05350b0c43ca11c586404be179c218562f58459b82622ab616002db30d3f")
    assert decompressed(stored + b"more") == (b'{"series":"s1","version":3,"close":[50.25]}', b"more")
