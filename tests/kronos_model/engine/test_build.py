"""How many slots an engine gets."""

import pytest

from kronos_model.engine.build import build_engine, memory_of_weights, slot_bytes
from kronos_model.errors import OutOfMemory
from tests.kronos_model.engine.conftest import MAX_CONTEXT


def test_slots_are_what_is_asked_for_or_what_the_memory_holds(pair):
    per_slot = slot_bytes(pair[0], MAX_CONTEXT)
    assert build_engine(*pair, max_context=MAX_CONTEXT, max_slots=5).load.slots == 5
    memory = memory_of_weights(*pair) + 5 * per_slot + per_slot // 2  # three for paths, two for prompts
    engine = build_engine(*pair, max_context=MAX_CONTEXT, max_slots=5, memory_bytes=memory)
    assert engine.load.slots == 3


def test_without_room_for_one_slot_there_is_no_engine(pair):
    memory = memory_of_weights(*pair) + 2 * slot_bytes(pair[0], MAX_CONTEXT) - 1
    with pytest.raises(OutOfMemory, match=str(memory)):
        build_engine(*pair, max_context=MAX_CONTEXT, memory_bytes=memory)
