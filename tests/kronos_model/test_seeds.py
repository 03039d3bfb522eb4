import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kronos_model.seeds import MAX_SEED, derive_series_seed, seed_from_text


def test_the_first_series_draws_with_the_jobs_own_seed() -> None:
    assert derive_series_seed(42, 0) == 42


def test_other_series_use_sha256_of_seed_and_index() -> None:
    digest = hashlib.sha256(b"42:3").hexdigest()

    assert derive_series_seed(42, 3) == int(digest[:16], 16) % 2**63


def test_published_values_never_change() -> None:
    # Clients in other languages reproduce forecasts from these.
    assert seed_from_text("abc") == 4213142463398924266
    assert derive_series_seed(0, 1) == 8003828004978139229


@given(seed=st.integers(0, MAX_SEED), index=st.integers(0, 10_000))
def test_seeds_fit_63_bits(seed: int, index: int) -> None:
    assert 0 <= derive_series_seed(seed, index) <= MAX_SEED


@given(text=st.text())
def test_any_text_gives_a_seed(text: str) -> None:
    assert 0 <= seed_from_text(text) <= MAX_SEED
    assert seed_from_text(text) == seed_from_text(text)


def test_series_of_one_job_do_not_share_a_seed() -> None:
    assert len({derive_series_seed(7, index) for index in range(1000)}) == 1000


@pytest.mark.parametrize(("seed", "index"), [(-1, 0), (2**63, 0), (0, -1)])
def test_invalid_seeds_are_refused(seed: int, index: int) -> None:
    with pytest.raises(ValueError, match=r"seed|index"):
        derive_series_seed(seed, index)
