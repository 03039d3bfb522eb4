"""Chances of events and statistics, as results have them."""

from typing import Any

import numpy as np
import pytest

from kronos_client.contract.errors import JobError
from kronos_client.contract.jobs import Limits, parse_job, prepare
from kronos_client.contract.results import (
    EventChance,
    SeriesForecast,
    quantile_key,
    sampling_warnings,
    series_result,
)
from kronos_model.bars.columns import CLOSE
from kronos_model.forecast import Forecast
from tests.kronos_client.contract.contract_jobs import job


def series_of(factors: list[float], **output: Any) -> SeriesForecast:
    """A result whose paths close at these multiples of the last known close at each of five bars."""
    read = parse_job(job(sampling={"sample_count": len(factors)}, output=output), Limits())
    (prepared,) = prepare(read, "an id", Limits())
    paths = np.ones((len(factors), 5, 6), dtype=np.float32)
    paths[:, :, CLOSE] = prepared.bars[-1, CLOSE] * np.array(factors)[:, None]
    return series_result(prepared, Forecast(paths, 1), read.output)


def chance(num_hits: int) -> EventChance:
    factors = [1.1] * num_hits + [0.9] * (30 - num_hits)
    (found,) = series_of(factors, events=["close>last at end"]).events
    return found


def test_a_chance_is_the_share_of_paths_with_its_error() -> None:
    some = chance(19)

    assert (some.event, some.num_hits, some.num_paths) == ("close>last at end", 19, 30)
    assert some.probability == pytest.approx(19 / 30)
    assert some.standard_error == pytest.approx(0.08798, abs=1e-5)
    assert some.low < some.probability < some.high
    assert some.in_words() == "63.3 % ± 8.8 (19 of 30 paths)"


def test_an_event_of_no_path_or_all_is_said_so() -> None:
    assert chance(0).in_words() == "fewer than 1 in 30 paths (95 %: at most 11.4 %)"
    assert chance(30).in_words() == "all of 30 paths (95 %: at least 88.6 %)"
    assert chance(0).standard_error is chance(30).standard_error is None


def test_statistics_have_mean_error_and_quantiles() -> None:
    one = series_of([0.9, 1.0, 1.1], statistics=True, quantiles=[0.5, 0.25])

    assert one.statistics is not None
    assert one.statistics.total_return.in_words() == "0.0 % (-10.0 to 0.0)"
    assert one.statistics.total_return.mean == pytest.approx(0, abs=1e-6)
    assert one.statistics.total_return.standard_error == pytest.approx(0.1 / 3**0.5, rel=1e-4)
    assert one.statistics.total_return.quantiles == pytest.approx({"0.5": 0, "0.25": -0.1}, abs=1e-6)
    assert one.statistics.max_drawdown.quantiles["0.25"] == pytest.approx(0, abs=1e-6)
    assert series_of([1.0]).statistics is None


def test_paths_that_fall_to_zero_are_left_out_of_the_volatility() -> None:
    some, none = (series_of(factors, statistics=True) for factors in ([1.0, -1.0, 1.0], [-1.0]))

    assert some.statistics is not None
    assert some.statistics.realised_volatility is not None
    assert "1 of 3 paths have a close at zero or below" in some.warnings[-1]
    assert none.statistics is not None
    assert none.statistics.realised_volatility is None


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ({"events": ["close>last at 6"]}, "output.events.0 asks for bar 6, but 5 are forecast"),
        (
            {"events": ["close>last at 5", "up"]},
            "output.events.1 must be an event such as 'close>last at 24'",
        ),
        ({"events": [3]}, "output.events.0 must be an event"),
        ({"events": "close>last at 5"}, "output.events must be an array"),
        ({"events": ["close>last at 5"] * 33}, "output.events must be an array of at most 32"),
    ],
)
def test_an_event_that_cannot_be_read_is_refused_by_its_place(output: dict[str, Any], message: str) -> None:
    with pytest.raises(JobError) as raised:
        parse_job(job(output=output), Limits())
    assert message in raised.value.message


@pytest.mark.parametrize(("level", "key"), [(0.1, "0.1"), (0.025, "0.025"), (0.123456789, "0.123456789")])
def test_a_quantile_is_named_by_its_shortest_decimal(level: float, key: str) -> None:
    assert quantile_key(level) == key


@pytest.mark.parametrize(
    ("num_paths", "output", "warnings"),
    [
        (1, {"quantiles": [0.1]}, ["Quantiles of 1 sample path say little: draw 20 or more."]),
        (19, {"quantiles": [0.1]}, ["Quantiles of 19 sample paths say little: draw 20 or more."]),
        (20, {"quantiles": [0.1, 0.9]}, []),
        (1, {"quantiles": []}, []),
        (30, {"quantiles": [0.5, 0.99]}, [
            "The quantile 0.99 lies beyond the outermost of 30 sample paths, which stands in for it: "
            "draw 99 or more."
        ]),
        (99, {"quantiles": [0.01, 0.99]}, []),
        (25, {"quantiles": [], "events": ["close>last at 1"]}, []),
        (10, {"quantiles": [], "events": ["close>last at 1"]}, [
            "Chances from 10 sample paths have a standard error of up to 16 points: draw 25 or more for 10, "
            "100 or more for 5."
        ]),
    ],
)  # fmt: skip
def test_too_few_paths_for_what_is_asked_give_a_warning(
    num_paths: int, output: dict[str, Any], warnings: list[str]
) -> None:
    read = parse_job(job(sampling={"sample_count": num_paths}, output=output), Limits())

    assert sampling_warnings(read) == warnings
