"""The rounds of kombu's event loop."""

import os

from kombu.asynchronous import Hub

from worker.broker import queue_watch, transport


def test_a_call_in_a_round_has_the_loop_run_again_without_a_wait():
    hub, calls, polls = Hub(), [], []
    hub.add_reader(os.pipe()[0], lambda: None)  # it only waits for readers
    hub.on_tick.add(lambda: queue_watch.call_soon(hub, lambda: calls.append(True)))
    poll = hub.poller.poll
    hub.poller.poll = lambda timeout: polls.append(poll(timeout)) or polls[-1]
    loop = hub.create_loop()
    for _ in range(5):
        next(loop)
    assert len(calls) >= 4
    assert all(polls)  # each ended by an event


def test_what_is_made_once_waits_for_the_loop_itself():
    made, calls = [], []
    own = transport.Rounds()
    own.once.append(lambda: made.append(True))
    own.calls.append(lambda: calls.append(True))
    own.run(unless_within_s=1)  # by a thread that stands in for the loop
    assert (len(made), len(calls)) == (0, 1)
    for _ in range(2):
        own.run()
    assert (len(made), len(calls)) == (1, 3)
