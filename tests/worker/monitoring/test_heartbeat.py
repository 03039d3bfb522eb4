"""What a worker's announcement adds to its status."""

from kronos_client.redis.routing import jobs_per_s, live_workers
from kronos_client.testing import fake_worker
from worker.monitoring import heartbeat
from worker.monitoring.heartbeat import Heartbeat
from worker.monitoring.metrics import Rates


def test_the_job_rate_counts_jobs_that_ended_between_announcements(redis, monkeypatch):
    moments = iter([0.0, 10.0, 20.0])
    monkeypatch.setattr(heartbeat, "Rates", lambda window_s: Rates(window_s, lambda: next(moments)))
    status = fake_worker(jobs_done=100, jobs_failed=5)
    beat = Heartbeat(redis, status.node, lambda: status, lambda: True)
    beat.announce()
    assert [worker.as_json() for worker in live_workers(redis)] == [status.as_json() | {"jobs_per_s": 0.0}]
    status = fake_worker(jobs_done=125, jobs_failed=10)
    beat.announce()
    assert live_workers(redis)[0].jobs_per_s == 3.0
    beat.announce()
    assert jobs_per_s("cpu", live_workers(redis)) == 1.5


def test_idle_time_does_not_change_the_job_rate(redis, monkeypatch):
    moments = iter([0.0, 10.0, 200.0, 205.0])
    monkeypatch.setattr(heartbeat, "Rates", lambda window_s: Rates(window_s, lambda: next(moments)))
    announced = iter([(0, 0.0), (8, 4.0), (8, 4.0), (9, 4.5)])

    def status():
        num_done, busy_s = next(announced)
        return fake_worker(jobs_done=num_done, busy_s=busy_s)

    beat, rates = Heartbeat(redis, fake_worker().node, status, lambda: True), []
    for _ in range(4):
        beat.announce()
        rates.append(live_workers(redis)[0].jobs_per_s)
    assert rates == [0.0, 2.0, 2.0, 2.0]


def test_workers_of_one_name_warn_once_and_a_restarted_one_does_not(redis, caplog):
    def beat(pid: int) -> Heartbeat:
        status = fake_worker(node="a@1", host="one", pid=pid)
        return Heartbeat(redis, status.node, lambda: status, lambda: True)

    dead, first, second = beat(1), beat(2), beat(3)
    for each in (dead, first, first, second):
        each.announce()
    assert caplog.messages == []
    for each in (first, second, first, second):
        each.announce()
    assert [text.partition(": ")[0] for text in caplog.messages] == [
        "process 3 on one is a worker named a@1 too",
        "process 2 on one is a worker named a@1 too",
    ]


def test_a_defect_of_the_status_does_not_end_the_announcements(redis):
    def fail():
        raise ValueError("a defect")

    Heartbeat(redis, "a@1", fail, lambda: True).announce()


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
