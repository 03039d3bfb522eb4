"""Deadlines: in the queue, while running, and on a machine whose clock jumps."""

import time
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
from celery import Celery

from kronos_client.client import ForecastClient
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.names import FORECAST_TASK
from tests.faults.accounting import Accounts
from tests.faults.fleet import Fleet, Worker
from tests.faults.redis_under_fault import RedisUnderFault
from tests.waiting import WAIT_S, await_true

CLOCK = Path(__file__).parent / "jumping_clock"
ONE_JOB = {"KRONOS_MAX_SLOTS": "24"}
"""Slots that one endless job fills."""


def test_a_deadline_that_passes_while_a_job_runs_frees_its_slots_at_the_next_step(
    fleet: Fleet, accounts: Accounts, client: ForecastClient
):
    worker = fleet.start(**ONE_JOB, PACE_S="0.15")  # by which the late one would take 18 s
    late = accounts.submit(client, "endless", deadline_s=8)
    await_true(lambda: late.state().name == "PROGRESS", "it runs")
    assert accounts.submit(client, "small").wait(WAIT_S).series
    with pytest.raises(JobError) as ended:
        late.wait(WAIT_S)
    assert ended.value.code == ErrorCode.DEADLINE
    assert fleet.num_bars() < accounts.num_bars()  # the late one was not computed to its end
    await_true(lambda: worker.announcements()[0]["sequences_running"] == 0, "all slots are free")
    accounts.assert_balanced(allowed={ErrorCode.DEADLINE})


def test_a_deadline_that_passes_behind_other_jobs_is_reported_when_a_worker_takes_it(
    fleet: Fleet, accounts: Accounts, client: ForecastClient
):
    late = [accounts.submit(client, "small", deadline_s=0.5) for _ in range(5)]
    in_time = accounts.submit(client, "small", deadline_s=3600)
    time.sleep(0.6)
    fleet.start()
    in_time.wait(WAIT_S)
    for handle in late:
        with pytest.raises(JobError) as ended:
            handle.wait(WAIT_S)
        assert ended.value.code == ErrorCode.DEADLINE
    accounts.assert_balanced(allowed={ErrorCode.DEADLINE})


@pytest.mark.parametrize("form", ["seconds", pytest.param("moment", marks=pytest.mark.at_length)])
def test_a_message_that_expires_in_the_queue_is_a_coded_error(
    fleet: Fleet, redis: RedisUnderFault, accounts: Accounts, candles: pd.DataFrame, form: str
):
    """Sent as by Celery's own clients, which have no deadlines."""
    expires = 0.5 if form == "seconds" else datetime.now(UTC) + timedelta(seconds=0.5)
    with Celery(broker=redis.url, backend=redis.url) as app:
        app.conf.task_serializer = "json"
        job = {
            "schema_version": 1,
            "series": [
                {
                    "id": "a",
                    "timestamps": [text.replace(" ", "T") for text in candles["timestamps"][:40].astype(str)],
                    **{name: candles[name][:40].tolist() for name in ("open", "high", "low", "close")},
                }
            ],
            "pred_len": 2,
        }
        for number in range(3):
            job_id = f"expiring-{number}"
            app.send_task(
                FORECAST_TASK, kwargs={"job": job}, task_id=job_id, queue="cpu", expires=expires, priority=3
            )
            accounts.count(job_id)
    time.sleep(0.6)
    fleet.start()
    accounts.settle(WAIT_S)
    assert accounts.codes() == {str(ErrorCode.DEADLINE): 3}
    accounts.assert_balanced(allowed={ErrorCode.DEADLINE})


def announces(worker: Worker, state: str) -> bool:
    return [one["state"] for one in worker.announcements()] == [state]


@pytest.mark.parametrize(
    "jump_s",
    [
        pytest.param(-90_000, marks=pytest.mark.at_length),
        -7200,
        pytest.param(7200, marks=pytest.mark.at_length),
        pytest.param(90_000, marks=pytest.mark.at_length),
    ],
)
def test_a_clock_that_jumps_changes_nothing(
    fleet: Fleet,
    redis: RedisUnderFault,
    accounts: Accounts,
    client: ForecastClient,
    tmp_path: Path,
    jump_s: int,
):
    clock = tmp_path / "clock"
    settings = {"PYTHONPATH": str(CLOCK), "JUMPING_CLOCK": str(clock)}
    jumping, steady = (
        fleet.begin(**settings, **ONE_JOB),
        fleet.begin(**ONE_JOB),
    )
    jumping.wait_until_ready()
    steady.wait_until_ready()
    running = []

    def has_a_job() -> bool:  # the steady one may be quicker, and holds one job behind the one that it runs
        running.append(accounts.submit(client, "endless", deadline_s=3600))
        time.sleep(0.2)
        return bool(accounts.in_hand(jumping.node))

    await_true(has_a_job, "the worker has a job")
    clock.write_text(str(jump_s))
    in_time = [accounts.submit(client, "small", deadline_s=600) for _ in range(20)]
    late = accounts.submit(client, "endless", deadline_s=1)
    for handle in (*running, *in_time):
        handle.wait(WAIT_S)
    with pytest.raises(JobError) as ended:
        late.wait(WAIT_S)
    assert ended.value.code == ErrorCode.DEADLINE
    for worker in (jumping, steady):  # which they announce every few seconds
        await_true(partial(announces, worker, "ready"), "it announces that it is ready")
    assert [job_id for job_id in accounts.accepted if accounts.num_starts(job_id) > 1] == []
    accounts.assert_balanced(allowed={ErrorCode.DEADLINE})


def test_jobs_of_a_sender_whose_clock_is_off_are_not_late_by_it(
    fleet: Fleet, accounts: Accounts, client: ForecastClient, monkeypatch: pytest.MonkeyPatch
):
    """Our client asks Redis for the moment of submission."""
    fleet.start()
    true_time = time.time
    monkeypatch.setattr(time, "time", lambda: true_time() - 7200)
    handle = accounts.submit(client, "small", deadline_s=60)
    handle.wait(WAIT_S)
    monkeypatch.undo()
    accounts.assert_balanced()
