"""What Flower shows of a job's arguments: short, and never its candles."""

import pytest

from kronos_client.redis.message import kwargsrepr

SERIES = {"id": "BTCUSDT", "close": [1.0] * 500}


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (
            {"series": [SERIES], "pred_len": 96, "sampling": {"sample_count": 20}},
            "{'series': 'BTCUSDT', 'pred_len': 96, 'samples': 20}",
        ),
        (
            {"series": [SERIES | {"future_timestamps": ["2026-01-01"] * 4}]},
            "{'series': 'BTCUSDT', 'pred_len': 4}",
        ),
        (
            {"series": [{"id": str(number)} for number in range(9)], "pred_len": 1},
            "{'series': '0, 1, 2, … (9)', 'pred_len': 1}",
        ),
        (
            {"series": [SERIES], "pred_len": 4, "model": "desk@3", "device": "cuda", "sampling": {}},
            "{'series': 'BTCUSDT', 'pred_len': 4, 'model': 'desk@3', 'device': 'cuda'}",
        ),
        ({"series": [SERIES], "model": None, "device": "auto"}, "{'series': 'BTCUSDT'}"),
        ({"feed": {"name": "us-5min", "uid": "a"}, "pred_len": 4}, "{'feed': 'us-5min', 'pred_len': 4}"),
        ({"feed": {"name": 7}}, "{'feed': '?'}"),
        ({"model": 7, "device": "c\npu"}, "{'device': '?'}"),
        ({"name": "mine", "config": {"data": "x" * 999}}, "{'name': 'mine'}"),
        ({"data": {"path": "prices"}, "samples": 30}, "{'data': 'prices'}"),
        ({"series": [{"id": "é" * 40}]}, "{'series': '" + "é" * 31 + "…'}"),
        ({"series": [{"id": "a\nb"}, {"id": 7}, 5]}, "{'series': '?, ?'}"),
        ({"series": "no list", "pred_len": "x", "sampling": 3, "name": 4}, "{}"),
        ({"series": [], "pred_len": [1]}, "{'series': ''}"),
    ],
)
def test_a_job_in_short(job, expected):
    assert kwargsrepr({"job": job}) == expected


@pytest.mark.parametrize("kwargs", [None, {}, [], {"job": [1]}, {"job": None}, "job"])
def test_what_is_no_job_shows_nothing(kwargs):
    assert kwargsrepr(kwargs) == "{}"
