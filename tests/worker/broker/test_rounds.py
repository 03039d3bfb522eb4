"""The rounds of kombu's event loop."""

import os

from kombu.asynchronous import Hub

from worker.broker import rounds


def test_a_call_in_a_round_has_the_loop_run_again_without_a_wait():
    hub, calls, polls = Hub(), [], []
    hub.add_reader(os.pipe()[0], lambda: None)  # it only waits for readers
    hub.on_tick.add(lambda: rounds.call_soon(hub, lambda: calls.append(True)))
    poll = hub.poller.poll
    hub.poller.poll = lambda timeout: polls.append(poll(timeout)) or polls[-1]
    loop = hub.create_loop()
    for _ in range(5):
        next(loop)
    assert len(calls) >= 4
    assert all(polls)  # each ended by an event
