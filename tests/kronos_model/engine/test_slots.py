"""Slots are handed out lowest first, and side by side if possible."""

import pytest

from kronos_model.engine.scheduling.slots import SlotLedger


def test_lowest_first_and_side_by_side():
    ledger = SlotLedger(8)
    assert ledger.take(2) == (0, 1)
    assert ledger.take(3) == (2, 3, 4)
    ledger.give_back((0, 1))
    assert ledger.take(1) == (0,)
    assert ledger.take(2) == (5, 6)
    assert ledger.num_used == 6


def test_where_no_place_is_wide_enough_slots_are_scattered():
    ledger = SlotLedger(5)
    ledger.take(5)
    ledger.give_back((0, 2, 3))
    assert ledger.take(3) == (0, 2, 3)


def test_more_than_are_free_cannot_be_taken():
    ledger = SlotLedger(2)
    ledger.take(1)
    with pytest.raises(ValueError, match="1 are free"):
        ledger.take(2)


def test_slots_may_begin_elsewhere():
    ledger = SlotLedger(2, first=8)
    assert ledger.take(2) == (8, 9)
