import numpy as np
import pytest

from kronos_model.bars.columns import CLOSE
from kronos_model.forecast import max_drawdown, realised_volatility, total_return

LAST = 100.0


def paths(*closes: list[float]) -> np.ndarray:
    bars = np.ones((len(closes), len(closes[0]), 6), dtype=np.float32)
    bars[:, :, CLOSE] = closes
    return bars


def test_the_statistics_count_from_the_last_known_close() -> None:
    some = paths([110, 99, 120], [90, 95, 80], [101, 102, 103])

    assert total_return(some, LAST) == pytest.approx([0.2, -0.2, 0.03])
    assert max_drawdown(some, LAST) == pytest.approx([0.1, 0.2, 0.0])
    squares = np.log([1.1, 0.9, 120 / 99]) ** 2
    assert realised_volatility(some, LAST)[0] == pytest.approx(np.sqrt(squares.sum()))


def test_a_path_at_zero_or_below_has_no_volatility() -> None:
    some = paths([110, 0, 10], [10, -5, 10], [100, 100, 100])

    assert np.isnan(realised_volatility(some, LAST)).tolist() == [True, True, False]
    assert realised_volatility(some, LAST)[2] == 0
    assert max_drawdown(some, LAST) == pytest.approx([1.0, 1.05, 0.0])
