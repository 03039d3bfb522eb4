import numpy as np

from kronos_model.bars.columns import Instrument
from kronos_model.evaluation.windows import Windows, window_arrays


def instrument(first: int, num_bars: int = 30) -> Instrument:
    numbers = first + np.arange(num_bars)
    bars, wall = np.repeat(numbers[:, None], 6, axis=1), numbers.astype("datetime64[s]")
    return Instrument("numbers", bars.astype(np.float32), wall, wall, is_aware=False)


def test_windows_are_cut_from_their_instruments():
    windows = Windows(np.array([1, 0], np.int32), np.array([4, 9]))
    arrays = window_arrays([instrument(0), instrument(100)], windows, lookback=3, pred_len=2)
    assert len(arrays) == 2
    assert arrays.past_closes.tolist() == [[104, 105, 106], [9, 10, 11]]
    assert arrays.future_closes.tolist() == [[107, 108], [12, 13]]
    assert arrays.wall.astype(int).tolist() == [[104, 105, 106, 107, 108], [9, 10, 11, 12, 13]]
    assert arrays.bars.dtype == np.float32
