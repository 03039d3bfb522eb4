"""The growth of counts over the last seconds."""

from worker.monitoring.rates import Rates


def test_the_growth_is_that_since_the_windows_start():
    moments = iter([0.0, 10.0, 60.0, 70.0, 80.0, 1000.0])
    rates = Rates(60, lambda: next(moments))
    counts = [(0, 0), (20, 1), (20, 2), (20, 3), (25, 4), (500, 9)]
    assert [rates.growth(*both) for both in counts] == [
        (0, 0, 0),
        (10, 20, 1),
        (60, 20, 2),
        (60, 0, 2),  # since 10 s
        (70, 5, 3),  # also: there is no count from 20 s
        (920, 475, 5),
    ]


def test_what_was_counted_before_the_first_call_does_not_matter():
    moments = iter([5.0, 7.0])
    rates = Rates(60, lambda: next(moments))
    assert [rates.growth(count) for count in (1000, 1001)] == [(0, 0), (2, 1)]
