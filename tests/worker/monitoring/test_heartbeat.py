"""What a worker's announcement adds to its status."""

from kronos_client.redis.routing import jobs_per_s, live_workers
from kronos_client.testing import fake_worker
from worker.monitoring import heartbeat
from worker.monitoring.heartbeat import Heartbeat
from worker.monitoring.rates import Rates


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


def test_a_defect_of_the_status_does_not_end_the_announcements(redis):
    def fail():
        raise ValueError("a defect")

    Heartbeat(redis, "a@1", fail, lambda: True).announce()
