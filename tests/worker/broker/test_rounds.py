"""The rounds of kombu's event loop."""

import os
from types import SimpleNamespace
from typing import Any

import pytest
from kombu.asynchronous import Hub
from kombu.transport import redis

from worker.broker import transport
from worker.broker.consuming import MessageConsumer, Rounds
from worker.broker.queue_watch import call_soon


def test_a_call_in_a_round_has_the_loop_run_again_without_a_wait():
    hub, calls, polls = Hub(), [], []
    hub.add_reader(os.pipe()[0], lambda: None)  # it only waits for readers
    hub.on_tick.add(lambda: call_soon(hub, lambda: calls.append(True)))
    poll = hub.poller.poll
    hub.poller.poll = lambda timeout: polls.append(poll(timeout)) or polls[-1]
    loop = hub.create_loop()
    for _ in range(5):
        next(loop)
    assert len(calls) >= 4
    assert all(polls)  # each ended by an event


def test_what_is_made_once_waits_for_the_loop_itself():
    made, calls = [], []
    own = Rounds()
    own.once.append(lambda: made.append(True))
    own.calls.append(lambda: calls.append(True))
    own.run(unless_within_s=1)  # by a thread that stands in for the loop
    assert (len(made), len(calls)) == (0, 1)
    for _ in range(2):
        own.run()
    assert (len(made), len(calls)) == (1, 3)


@pytest.fixture
def woken(monkeypatch) -> list[bool]:
    """Has an entry for each time that the process's consumer woke the loop."""
    woken: list[bool] = []
    parts: Any = SimpleNamespace(), SimpleNamespace()
    consumer = MessageConsumer(parts[0], 0, parts[1])
    consumer.wake_by(lambda: woken.append(True))
    monkeypatch.setattr(transport, "message_consumer", lambda: consumer)
    monkeypatch.setattr(transport, "rounds", Rounds())
    return woken


def test_the_loop_is_woken_once_for_all_that_its_next_round_does(woken):
    poller, consumer = transport.Poller(), transport.message_consumer()
    for num_rounds in (1, 2):
        consumer.wake()
        consumer.wake()
        assert len(woken) == num_rounds
        poller.on_poll_start()


def test_what_changes_during_takes_is_done_in_the_round_after_them(woken, monkeypatch):
    consumer = transport.message_consumer()
    monkeypatch.setattr(redis.MultiChannelPoller, "on_poll_start", lambda _: consumer.wake())
    done: list[int] = []
    transport.rounds.calls.append(lambda: done.append(len(woken)))
    transport.Poller().on_poll_start()
    assert done == [0]


def test_what_changes_during_a_round_has_another_one(woken):
    """Also if another thread goes on with the jobs, so that this round does nothing."""
    poller, consumer = transport.Poller(), transport.message_consumer()
    transport.rounds.calls.append(consumer.wake)
    for num_rounds in (1, 2):
        poller.on_poll_start()
        assert len(woken) == num_rounds
