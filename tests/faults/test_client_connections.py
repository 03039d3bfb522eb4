"""A client behind connections that fall silent gets its job's state within bounded time."""

import threading
import time

import pytest

from kronos_client.client import ForecastClient, ForecastHandle
from kronos_client.contract.errors import ErrorCode, JobError
from kronos_client.contract.results import ForecastResult
from tests.faults.accounting import Accounts
from tests.faults.conftest import MakeClient, Note
from tests.faults.fleet import Fleet
from tests.faults.proxy import FaultyProxy, Rule
from tests.waiting import WAIT_S


@pytest.mark.at_length
def test_a_client_whose_open_connections_fall_silent(
    fleet: Fleet,
    accounts: Accounts,
    client: ForecastClient,
    make_client: MakeClient,
    proxy: FaultyProxy,
    note: Note,
):
    fleet.start(PACE_S="0.06")
    behind = make_client(proxy.url)
    handle = accounts.submit(behind, "endless", seed=1)
    outcomes: list[object] = []
    waiter = threading.Thread(target=lambda: outcomes.append(wait_again(handle)), daemon=True)
    waiter.start()
    time.sleep(0.5)  # it waits by now
    began = time.monotonic()
    assert proxy.silence_open_connections() > 0
    other, refusals = accounts.submit_until_accepted(behind, "small")
    assert {code for code, _ in refusals} <= {ErrorCode.BROKER_UNREACHABLE, ErrorCode.ENQUEUE_UNCERTAIN}
    assert wait_again(other).series
    waiter.join(WAIT_S)
    note("client back after s", time.monotonic() - began)
    assert len(outcomes) == 1, "the waiting client has no answer"
    accounts.assert_balanced()
    accounts.assert_computed_once()


def wait_again(handle: ForecastHandle, tries: int = 3) -> ForecastResult:
    """Wait as an app should: again, if Redis does not answer."""
    for _ in range(tries):
        try:
            return handle.wait(WAIT_S)
        except JobError as error:
            if error.code != ErrorCode.BROKER_UNREACHABLE:
                raise
    raise AssertionError(f"Redis was not reached in {tries} tries")


def test_a_lost_answer_is_an_error_with_the_id_and_the_job_may_be_sent_again(
    fleet: Fleet,
    accounts: Accounts,
    client: ForecastClient,
    make_client: MakeClient,
    proxy: FaultyProxy,
    note: Note,
):
    behind = make_client(proxy.url)
    lost = Rule(None, lambda request: request.script == "admit")
    proxy.rules = [lost]
    job_id = accounts.next_id()
    began = time.monotonic()
    with pytest.raises(JobError) as uncertain:
        accounts.submit(behind, "small", job_id=job_id)
    assert lost.num_hits == 1
    assert uncertain.value.code == ErrorCode.ENQUEUE_UNCERTAIN
    assert uncertain.value.details["job_id"] == job_id
    note("reported after s", time.monotonic() - began)
    proxy.rules = []
    again = [accounts.submit(client, "small", job_id=job_id) for _ in range(3)]
    fleet.start()
    assert len({handle.wait(WAIT_S).series[0].mean["close"] for handle in again}) == 1
    accounts.assert_balanced()
    assert accounts.num_published_outcomes(job_id) == 1
    accounts.assert_computed_once()
