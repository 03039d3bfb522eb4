"""The rate of jobs that ended lately."""

import pytest

from worker.monitoring.job_rate import JobRate


@pytest.fixture
def clock():
    return iter([0.0, 10.0, 60.0, 70.0, 80.0, 1000.0, 1000.0])


def test_the_rate_is_that_of_the_last_minute(clock):
    rate = JobRate(clock=lambda: next(clock))
    # At 80 s the window begins with the count of 60 s, the first one that lies in it.
    assert [rate.observe(num) for num in (0, 20, 20, 20, 25)] == [0.0, 2.0, 20 / 60, 0.0, 5 / 20]
    # After a long time without counts, nothing is known about that time.
    assert [rate.observe(num) for num in (500, 600)] == [0.0, 0.0]


def test_jobs_before_the_first_count_do_not_matter():
    moments = iter([5.0, 7.0])
    rate = JobRate(clock=lambda: next(moments))
    assert [rate.observe(num) for num in (1000, 1001)] == [0.0, 0.5]
