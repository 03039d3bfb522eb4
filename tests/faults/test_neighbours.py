"""Another app's Celery on the same database: its long tasks start once, whatever becomes of our workers.

Its queue has the name of one of ours without the prefix.
"""

import os
import subprocess
import sys
import time

from celery import Celery

from tests.faults.accounting import Accounts
from tests.faults.conftest import MakeClient
from tests.faults.fleet import Fleet
from tests.faults.redis_under_fault import RedisUnderFault
from tests.integration.conftest import ROOT
from tests.waiting import WAIT_S, await_true

NUM_NAPS = 3


def test_its_long_tasks_start_exactly_once(
    fleet: Fleet,
    redis: RedisUnderFault,
    accounts: Accounts,
    make_client: MakeClient,
    tmp_path,
    at_length: bool,
):
    nap_s = 180 if at_length else 15  # longer than our timeouts, by default and here
    settings = {
        "KRONOS_VISIBILITY_TIMEOUT_S": "60" if at_length else "3",
        "KRONOS_QUEUE_PREFIX": "ours.",
    }
    client = make_client(queue_prefix="ours.")
    log = tmp_path / "neighbour.log"
    with log.open("w") as output:
        command = ["-m", "celery", "-A", "tests.faults.neighbour", "worker", "--pool", "threads", "-Q", "cpu"]
        neighbour = subprocess.Popen(
            [sys.executable, *command, "--concurrency", str(NUM_NAPS), "--hostname", "neighbour@test"],
            cwd=ROOT,
            env=os.environ | fleet.mark | {"NEIGHBOUR_URL": redis.url},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    app = Celery(broker=redis.url, backend=redis.url, set_as_current=False)
    sent_at = time.monotonic()
    naps = [app.send_task("neighbour.nap", (f"naps:{n}", nap_s), queue="cpu") for n in range(NUM_NAPS)]
    first = fleet.start(**settings)
    await_true(lambda: all(redis.connection.get(f"naps:{n}") for n in range(NUM_NAPS)), "the naps begin")
    accounts.submit_many(client, "long", 20)
    await_true(lambda: accounts.in_hand(first.node), "our worker is busy")
    first.kill()
    second = fleet.start(**settings)
    accounts.submit_many(client, "small", 10)
    second.end()
    fleet.start(**settings)
    accounts.settle()
    assert sorted(nap.get(timeout=nap_s + 30) for nap in naps) == [f"naps:{n}" for n in range(NUM_NAPS)]
    assert time.monotonic() - sent_at > nap_s
    time.sleep(2)  # a second delivery would begin now
    assert [redis.connection.get(f"naps:{n}") for n in range(NUM_NAPS)] == ["1"] * NUM_NAPS
    neighbour.terminate()
    assert neighbour.wait(WAIT_S) == 0, log.read_text()
    accounts.assert_balanced()
