"""Who gets slots and steps: no class starves, shares are even, and no bar is computed twice."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from kronos_model.engine.engine import Engine
from kronos_model.engine.generation import PRIORITIES, Generation, SeriesRequest
from kronos_model.engine.scheduling import slots
from kronos_model.engine.scheduling.scheduler import LOWER_CLASS_CHUNKS
from kronos_model.engine.scheduling.shares import (
    CLASS_RATIO,
    LEAST_SLOTS,
    QUANTUM_BARS,
    JobColumns,
    Jobs,
    fair_shares,
    slot_targets,
)
from tests.kronos_model.engine.test_engine import ScriptedRunner, finish, request


def job_request(
    seed: int, *, priority: str = "normal", job: str | None = None, **sizes: int
) -> SeriesRequest:
    return replace(request(seed, **sizes), priority=priority, job=job)


def columns(rank: list, service: list, held: list, wanted: list) -> JobColumns:
    return JobColumns(np.arange(len(rank)), *map(np.array, (rank, service, held, wanted)))


def bars_by_seed(runner: ScriptedRunner) -> Counter[int]:
    bars: Counter[int] = Counter()
    for step in runner.steps:
        for seed, num_paths in step:
            bars[seed] += num_paths
    return bars


def steps_until_done(engine: Engine, generation: Generation, at_most: int) -> int:
    for num_steps in range(at_most):
        if generation.done:
            return num_steps
        engine.step()
    pytest.fail(f"not done after {at_most} steps")


jobs = st.tuples(
    st.sampled_from(PRIORITIES),
    st.sampled_from([None, "a", "b"]),
    st.integers(1, 20),  # paths
    st.integers(1, 16),  # lookback
    st.integers(1, 16),  # horizon
    st.integers(0, 5),  # steps before it comes
)


@settings(max_examples=100)
@given(st.lists(jobs, min_size=1, max_size=12), st.integers(1, 8), st.integers(0, 3), st.integers(4, 64))
def test_all_jobs_end_and_no_bar_is_generated_twice(mix, num_slots, num_spare, max_chunk_bars):
    runner = ScriptedRunner(num_slots + num_spare)
    engine = Engine(runner, max_chunk_bars=max_chunk_bars, num_spare_slots=num_spare)
    generations = []
    for seed, (priority, job, paths, lookback, horizon, steps_before) in enumerate(mix):
        for _ in range(steps_before):
            engine.step()
        sizes = {"paths": paths, "lookback": lookback, "horizon": horizon}
        job = job and job + priority
        generations.append(engine.submit(job_request(seed, priority=priority, job=job, **sizes)))
        assert engine.load.running <= num_slots + num_spare
    for _ in range(20_000):
        if not engine.has_work:
            break
        engine.step()
    assert [generation.paths[:, 0, 0].tolist() for generation in generations] == [
        list(range(generation.request.sampling.sample_count)) for generation in generations
    ]
    assert bars_by_seed(runner) == {
        seed: generation.num_bars_total for seed, generation in enumerate(generations)
    }
    assert sorted(runner.forgotten) == list(range(len(mix)))
    assert engine.load.running == engine.load.waiting == 0


@pytest.mark.parametrize("priority", ["high", "normal", "low"])
def test_a_small_job_gets_a_slot_at_once_however_large_the_others_are(priority):
    runner = ScriptedRunner(num_slots=8)
    engine = Engine(runner)
    for seed in (1, 2):
        engine.submit(job_request(seed, priority="low", paths=256, horizon=16))
    for _ in range(5):
        engine.step()
    small = engine.submit(job_request(3, priority=priority, paths=1, horizon=3))
    assert steps_until_done(engine, small, 20) == 4  # its lookback and first bar, two bars, and the way back


@pytest.mark.parametrize("priority", ["high", "low"])
def test_small_jobs_take_spare_slots_and_large_ones_go_on_undisturbed(priority):
    runner = ScriptedRunner(num_slots=10)
    engine = Engine(runner, num_spare_slots=2)
    for seed in (1, 2):
        engine.submit(job_request(seed, priority="low", paths=40, horizon=7))
    for seed in range(3, 40):
        engine.step()
        if seed % 4 == 0:
            small = engine.submit(job_request(seed, priority=priority, paths=2, horizon=3))
            assert steps_until_done(engine, small, 20) == 4
    assert engine.load.slots == 8
    assert runner.suspended == []
    assert {pair for step in runner.steps for pair in step if pair[0] <= 2} == {(1, 4), (2, 4)}


def test_large_jobs_use_no_spare_slots():
    runner = ScriptedRunner(num_slots=10)
    engine = Engine(runner, num_spare_slots=2)
    for seed, paths in ((1, 40), (2, 3)):
        engine.submit(job_request(seed, paths=paths, horizon=7))
    for _ in range(10):
        engine.step()
        assert engine.load.running <= 8


def test_a_class_has_eight_times_the_slots_of_the_next_lower_one():
    runner = ScriptedRunner(num_slots=9)
    engine = Engine(runner)
    engine.submit(job_request(1, priority="low", paths=100, horizon=8))
    engine.step()
    high = engine.submit(job_request(2, priority="high", paths=100, horizon=8))
    num_steps = steps_until_done(engine, high, 1000)
    during = Counter()
    for step in runner.steps[3 : num_steps - 10]:
        during.update(dict(step))
    assert during[2] == pytest.approx(CLASS_RATIO * during[1], rel=0.1)


@pytest.mark.parametrize("num_high", [17, 60, 70])
def test_more_high_jobs_than_slots_lose_no_path_of_a_low_one(num_high):
    runner = ScriptedRunner(num_slots=18 if num_high == 17 else 64)
    engine = Engine(runner)
    low = engine.submit(job_request(0, priority="low", paths=256, horizon=5))
    for _ in range(5):
        engine.step()
    for seed in range(1, 1 + num_high):
        engine.submit(job_request(seed, priority="high", horizon=16))
    for _ in range(2000):
        engine.step()
    assert low.paths[:, 0, 0].tolist() == list(range(256))
    assert bars_by_seed(runner)[0] == low.num_bars_total


@pytest.mark.parametrize("num_large", [1, 3])
def test_a_high_job_gets_a_slot_of_a_lower_class_however_many_are_suspended(num_large):
    runner = ScriptedRunner(num_slots=64)
    engine = Engine(runner)
    for seed, priority in enumerate(("low", "normal", "high")[:num_large]):
        engine.submit(job_request(seed, priority=priority, paths=256, horizon=16))
        for _ in range(5):
            engine.step()
    small = engine.submit(job_request(9, priority="high", paths=2, horizon=3))
    assert steps_until_done(engine, small, 50) <= 6


SMALL = {"lookback": 8, "paths": 1}
LONG = {"lookback": 60}


@pytest.mark.parametrize("num_slots", [1, 2, 3, 8])
@pytest.mark.parametrize(
    ("old", "others", "max_chunk_bars", "most_steps"),
    [
        ({"priority": "low", "horizon": 3}, {"priority": "high", "paths": 2, "horizon": 4}, 512, 5000),
        ({"priority": "low", "horizon": 1}, {"priority": "high", "lookback": 40, "horizon": 1}, 4, 2000),
        ({"priority": "low", "horizon": 4, **LONG}, {"priority": "high", "horizon": 1, **LONG}, 16, 8000),
    ],
    ids=["slots", "chunks", "a-lookback-longer-than-a-turn"],
)
def test_an_old_job_ends_while_others_keep_coming(num_slots, old, others, max_chunk_bars, most_steps):
    runner = ScriptedRunner(num_slots)
    runner.max_context = 64
    engine = Engine(runner, max_chunk_bars=max_chunk_bars)
    oldest = engine.submit(job_request(0, **SMALL | old))
    for seed in range(1, most_steps):
        if oldest.done:
            break
        if engine.load.waiting < max(10, 2 * num_slots):
            engine.submit(job_request(seed, **SMALL | others))
        engine.step()
    assert oldest.done


def test_a_large_job_goes_on_while_small_ones_keep_coming():
    engine = Engine(ScriptedRunner(num_slots=4))
    large = engine.submit(job_request(0, paths=8, horizon=16))
    for seed in range(1, 400):
        if large.done:
            break
        engine.submit(job_request(seed, horizon=3))
        engine.step()
    assert large.done


@pytest.mark.parametrize("num_slots", [1, 3, 8])
def test_jobs_of_a_class_get_even_shares_whatever_their_number_of_series(num_slots):
    runner = ScriptedRunner(num_slots)
    engine = Engine(runner)
    for seed in range(1, 30):
        engine.submit(job_request(seed, job="many series", paths=4, horizon=16))
    engine.submit(job_request(0, job="many paths", paths=500, horizon=16))
    for _ in range(400):
        engine.step()
    bars = bars_by_seed(runner)
    of_paths = bars.pop(0)
    assert of_paths == pytest.approx(sum(bars.values()), rel=0.15)


def test_paths_with_the_newest_bars_are_not_suspended_for_jobs_of_their_own_class_before_they_got_further():
    runner = ScriptedRunner(num_slots=1)
    engine = Engine(runner, max_chunk_bars=4)
    engine.submit(job_request(1, lookback=200, horizon=2))
    engine.submit(job_request(2, lookback=200, horizon=2))
    while engine.has_work:
        engine.step()
    # Each lookback was computed once.
    assert sum(bars for step in runner.chunks for _, phase, bars in step if phase.name == "LOOKBACK") == 400


def test_chunks_of_a_higher_class_come_first():
    runner = ScriptedRunner(num_slots=8)
    engine = Engine(runner, max_chunk_bars=4)
    for seed in (1, 2):
        engine.submit(job_request(seed, priority="low", lookback=100))
    engine.submit(job_request(3, priority="normal", lookback=8))
    engine.step()
    engine.step()
    engine.submit(job_request(4, priority="high", lookback=8))
    for _ in range(3):
        engine.step()
    lookbacks = [seed for step in runner.chunks for seed, phase, _ in step if phase.name == "LOOKBACK"]
    assert lookbacks == [3, 3, 4, 4]


def test_while_a_higher_class_runs_a_step_computes_fewer_bars_of_lower_ones():
    runner = ScriptedRunner(num_slots=8)
    engine = Engine(runner, max_chunk_bars=16)
    engine.submit(job_request(1, priority="high", lookback=2, horizon=3))
    engine.submit(job_request(2, priority="low", lookback=60))
    finish(engine)
    bars_of_low = [bars for step in runner.chunks for seed, _, bars in step if seed == 2]
    assert bars_of_low[:5] == [4, 4, 16, 16, 16]


def test_a_new_job_does_not_wait_for_jobs_that_could_not_use_their_share():
    runner = ScriptedRunner(num_slots=64)
    runner.max_context = 512
    engine = Engine(runner)
    engine.submit(job_request(0, paths=3000, lookback=16, horizon=496))
    for seed in range(1, 9):  # one slot each; they compute their windows anew, in chunks
        engine.submit(job_request(seed, lookback=212, horizon=480))
    for _ in range(302):
        engine.step()
    small = engine.submit(job_request(9, lookback=500, horizon=3))
    assert steps_until_done(engine, small, 60) <= 30


def test_a_holder_keeps_its_slot_until_it_is_a_quantum_ahead():
    def targets(service: float) -> list[int]:
        jobs = columns(rank=[1, 1], service=[service, 0.0], held=[1, 0], wanted=[1, 1])
        return slot_targets(jobs, 1).tolist()

    assert targets(QUANTUM_BARS - 1) == [1, 0]
    assert targets(QUANTUM_BARS + 1) == [0, 1]


def test_suspended_state_is_bounded_and_what_is_beyond_starts_over(monkeypatch):
    monkeypatch.setattr(slots, "MIN_KEPT", 0)
    runner = ScriptedRunner(num_slots=4)
    engine = Engine(runner)
    generations, kept = [], []
    runner.suspend = lambda suspension: kept.append((suspension.keeps_state, suspension.sequence.num_paths))
    for seed, priority in enumerate(PRIORITIES[::-1]):
        generations.append(engine.submit(job_request(seed, priority=priority, paths=4, horizon=16)))
        for _ in range(5):
            engine.step()
    assert sum(num_paths for keeps_state, num_paths in kept if keeps_state) <= 4
    assert not all(keeps_state for keeps_state, _ in kept)
    while engine.has_work:
        engine.step()
    assert all(generation.paths.shape == (4, 16, 6) for generation in generations)


def test_a_path_that_comes_twice_is_an_error():
    generation = Generation(request(1, paths=3))
    generation.accept(0, np.zeros((2, 2, 6), np.float32))
    with pytest.raises(RuntimeError, match="twice"):
        generation.accept(1, np.zeros((2, 2, 6), np.float32))


@given(
    st.lists(st.tuples(st.sampled_from(range(3)), st.integers(1, 100)), min_size=1, max_size=8),
    st.integers(1, 64),
)
def test_shares_are_max_min_fair(wanted, num_slots):
    ranks, nums = zip(*wanted, strict=True)
    nothing = [0] * len(ranks)
    shares = fair_shares(columns(ranks, service=nothing, held=nothing, wanted=nums), num_slots).tolist()
    assert sum(shares) == pytest.approx(min(num_slots, sum(nums)))
    jobs = list(zip(ranks, nums, shares, strict=True))
    least = max(1, min(LEAST_SLOTS, num_slots // 4))
    for rank, num_wanted, share in jobs:
        assert 0 <= share <= num_wanted + 1e-9
        served = [(wants, has) for each, wants, has in jobs if each == rank and has > 0]
        if share == 0:  # it waits for its turn, since not all can have as many as are used well
            assert least > 1
            assert sum(min(wants, least) for each, wants, _ in jobs if each == rank) > sum(
                has for _, has in served
            )
            assert sum(has < min(wants, least) / 2 for wants, has in served) <= 1
        elif share < num_wanted - 1e-9:
            assert max(has for _, has in served) <= share + 1e-9  # nobody has more than one who lacks some
        for other, _, _ in jobs:
            if other > rank and share < num_wanted - 1e-9:
                lower, upper = (
                    sum(shared[2] for shared in jobs if shared[0] == each) for each in (other, rank)
                )
                assert lower * CLASS_RATIO <= upper + 1e-6


def test_many_jobs_take_turns_with_enough_slots_to_read_their_prompt_together():
    runner = ScriptedRunner(num_slots=64)
    engine = Engine(runner)
    for seed in range(24):
        engine.submit(job_request(seed, paths=30, horizon=16))
    while engine.has_work:
        engine.step()
    num_paths = [num_paths for step in runner.steps for _, num_paths in step]
    assert np.mean(num_paths) >= 8  # 2.7 if all had an equal share in each step


def test_a_new_job_gets_its_turn_once_large_ones_are_a_quantum_ahead():
    runner = ScriptedRunner(num_slots=64)
    runner.max_context = 512
    engine = Engine(runner)
    for seed in range(4):
        engine.submit(job_request(seed, paths=3000, horizon=500))
    for _ in range(50):
        engine.step()
    new = engine.submit(job_request(4, paths=16, horizon=3))
    assert steps_until_done(engine, new, 100) <= 3 * QUANTUM_BARS


@given(
    st.lists(
        st.tuples(st.sampled_from(range(3)), st.integers(0, 40), st.integers(0, 4), st.integers(0, 4)),
        min_size=1,
        max_size=12,
    ),
    st.integers(1, 32),
)
def test_targets_use_all_slots_by_shares_and_then_by_turn(jobs, num_slots):
    rank, service, held, waiting = np.array(jobs).T
    given_jobs = columns(rank, service, held, held + waiting)
    targets, shares = slot_targets(given_jobs, num_slots), fair_shares(given_jobs, num_slots)
    assert targets.sum() == min(num_slots, given_jobs.wanted.sum())
    assert (np.floor(shares + 1e-9) <= targets).all()
    assert (targets <= given_jobs.wanted).all()
    turn = given_jobs.turn
    for holder in np.flatnonzero((shares > 0) & (shares < 1 - 1e-9) & (targets == 1)):
        for other in np.flatnonzero((given_jobs.wanted > 0) & (targets == 0) & (rank == rank[holder])):
            assert turn[holder] <= turn[other]


@pytest.mark.parametrize("num_slots", [2, 3, 5])
def test_classes_take_turns_by_their_shares_where_there_are_fewer_slots_than_jobs(num_slots):
    runner = ScriptedRunner(num_slots)
    engine = Engine(runner)
    for seed in range(12):
        engine.submit(job_request(seed, priority=("high", "low")[seed % 2], paths=500, horizon=16))
    for _ in range(4000):
        engine.step()
    bars = bars_by_seed(runner)
    of_high, of_low = (sum(bars[seed] for seed in range(first, 12, 2)) for first in (0, 1))
    assert of_high == pytest.approx(CLASS_RATIO * of_low, rel=0.1)
    for first in (0, 1):
        of_class = [bars[seed] for seed in range(first, 12, 2)]
        assert max(of_class) - min(of_class) <= 3 * 16 * QUANTUM_BARS


def keep_coming(engine: Engine, step: int, priority: str, num_jobs: int, **sizes: int) -> None:
    """Submit small jobs of a class so that always some wait or run."""
    if engine.load.waiting < num_jobs:
        engine.submit(job_request(1000 + step, priority=priority, **sizes))


@pytest.mark.parametrize("keeps", ["slots", "chunks"])
@pytest.mark.parametrize("old_priority", ["high", "normal", "low"])
def test_an_old_job_goes_on_beside_a_higher_one_and_new_ones_of_its_class(keeps, old_priority):
    runner = ScriptedRunner(num_slots=8)
    runner.max_context = 64
    engine = Engine(runner, max_chunk_bars=64)
    # The higher job always runs, and uses far less than its share.
    engine.submit(job_request(0, priority="high", lookback=4, horizon=60))
    sizes = {"lookback": 64, "horizon": 30} if keeps == "chunks" else {"lookback": 4, "horizon": 12}
    old = engine.submit(job_request(1, priority=old_priority, paths=16 if keeps == "slots" else 1, **sizes))
    for step in range(4000):
        if old.done:
            break
        if step % 30 == 0:
            engine.submit(job_request(500 + step, priority="high", lookback=4, horizon=30))
        keep_coming(engine, step, old_priority, 8, **sizes)
        engine.step()
    assert old.done


classes = st.fixed_dictionaries(
    {
        "lookback": st.integers(1, 60),
        "horizon": st.integers(1, 30),
        "paths": st.integers(1, 12),
        "waiting": st.integers(1, 20),
    }
)


@settings(max_examples=40, phases=[Phase.explicit, Phase.generate])
@given(
    st.dictionaries(st.sampled_from(PRIORITIES), classes, min_size=1),
    st.sampled_from(PRIORITIES),
    st.integers(1, 9),
    st.integers(0, 2),
    st.integers(16, 128),
)
def test_every_job_ends_however_many_others_keep_coming(mix, priority, num_slots, num_spare, max_chunk_bars):
    runner = ScriptedRunner(num_slots + num_spare)
    runner.max_context = 64
    engine = Engine(runner, max_chunk_bars=max_chunk_bars, num_spare_slots=num_spare)
    seed, waiting = 1, dict.fromkeys(mix, 0)
    running: list[tuple[str, Generation]] = []
    old = engine.submit(job_request(0, priority=priority, paths=3, lookback=40, horizon=8))
    # The lowest of three classes is first in each 64th step, and computes a quarter of a step's chunk then.
    # Its jobs take turns, and the old one needs up to 184 bars: of lookback, and to turn its paths into bars.
    num_jobs = 1 + mix.get(priority, {"waiting": 0})["waiting"]
    num_steps = 5000 + 2 * CLASS_RATIO**2 * num_jobs * 184 // (max_chunk_bars // LOWER_CLASS_CHUNKS)
    for _ in range(num_steps):
        if old.done:
            break
        running = [(name, generation) for name, generation in running if not generation.done]
        waiting = Counter(name for name, _ in running)
        for name, sizes in mix.items():
            for _ in range(sizes["waiting"] - waiting[name]):
                new = job_request(seed, priority=name, **{k: v for k, v in sizes.items() if k != "waiting"})
                running.append((name, engine.submit(new)))
                seed += 1
        engine.step()
    assert old.done


def test_a_job_that_wanted_no_more_is_not_owed_for_that_time():
    jobs = Jobs()
    small, large, new = (Generation(request(seed)) for seed in range(3))
    accounts = {}
    for generation in (small, large):
        job = jobs.join(generation)
        accounts[generation] = job.account
    jobs.for_slots.serve_each(np.array([accounts[large]] * 100))
    assert [jobs.columns().service[accounts[generation]] for generation in (small, large)] == [0, 100]
    jobs.count(jobs[small], waiting=1)
    accounts[new] = jobs.join(new).account
    jobs.count(jobs[new], waiting=1)
    assert [jobs.columns().service[account] for account in accounts.values()] == [100, 100, 100]


def test_virtual_time_is_that_of_a_job_with_an_even_share_of_its_class():
    jobs = Jobs()
    generations = [
        Generation(job_request(seed, priority=priority))
        for seed, priority in enumerate(["low", "low", "high"])
    ]
    accounts = [jobs.join(generation).account for generation in generations]
    for generation in generations[:2]:
        jobs.count(jobs[generation], waiting=1)
    for _ in range(10):  # the high job wants no more, and counts for nothing
        jobs.for_slots.serve_each(np.array([accounts[0], accounts[0], accounts[1], accounts[2]]))
    new = Generation(job_request(9, priority="low"))
    jobs.count(jobs.join(new), waiting=1)
    assert jobs.columns().service[jobs[new].account] == 15


def test_accounts_of_jobs_that_left_are_used_again():
    jobs = Jobs()
    for number in range(200):
        generation = Generation(job_request(number, priority="low"))
        account = jobs.join(generation).account
        assert jobs.columns().service[account] == 0
        jobs.for_slots.serve_each(np.array([account] * 3))
        jobs.leave(generation)
