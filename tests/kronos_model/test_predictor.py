from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest
import torch

from kronos_model import Kronos, KronosPredictor, KronosTokenizer
from kronos_model.bars.columns import COLUMNS, repair_bars
from kronos_model.bars.synthetic import candles
from kronos_model.engine.build import build_engine
from kronos_model.engine.engine import Engine
from kronos_model.errors import CandleError, InputError, TimestampError
from kronos_model.seeds import derive_series_seed

Series = tuple[pd.DataFrame, pd.Series, pd.Series]


@pytest.fixture(scope="module")
def predictor() -> KronosPredictor:
    model, tokenizer = Kronos.from_pretrained("kronos-tiny"), KronosTokenizer.from_pretrained("kronos-tiny")
    return KronosPredictor(model, tokenizer, device="cpu", max_context=64)


def test_the_context_is_the_references_or_that_of_a_shorter_training(predictor, monkeypatch):
    pair = predictor.model, predictor.tokenizer
    contexts = []
    for trained in (64, 512, 2048):
        monkeypatch.setattr(
            "kronos_model.predictor.default_max_context", lambda source, trained=trained: trained
        )
        contexts.append(KronosPredictor(*pair, device="cpu").max_context)
    assert contexts == [64, 512, 512]


def series(seed: int = 0, lookback: int = 40, horizon: int = 5) -> Series:
    frame = pd.DataFrame(candles(seed, lookback + horizon).as_dict())
    times = pd.to_datetime(frame["timestamps"])
    return frame.loc[: lookback - 1, list(COLUMNS)], times[:lookback], times[lookback:]


def test_predict_gives_a_frame_indexed_by_the_future(predictor):
    df, past, future = series()
    forecast = predictor.predict(df, past, future, pred_len=np.int64(5), seed=1)
    assert list(forecast.columns) == list(COLUMNS)
    assert list(forecast.index) == list(future)
    assert forecast.attrs["seed"] == 1
    assert np.isfinite(forecast.to_numpy()).all()


def test_a_batch_equals_each_series_alone_with_its_own_seed(predictor):
    several = [series(0, 40, 5), series(1, 7, 5), series(2, 90, 5)]
    batch = predictor.predict_batch(*map(list, zip(*several, strict=True)), 5, sample_count=3, seed=4)
    for index, (given, forecast) in enumerate(zip(several, batch, strict=True)):
        alone = predictor.predict(*given, 5, sample_count=3, seed=derive_series_seed(4, index))
        np.testing.assert_allclose(forecast, alone, rtol=1e-5)
        assert forecast.attrs["seed"] == alone.attrs["seed"]


def test_the_series_of_a_batch_do_not_take_turns(predictor, monkeypatch):
    """Prompts would be computed again for each turn."""
    run, jobs = predictor._run, []
    monkeypatch.setattr(
        predictor,
        "_run",
        lambda requests, *args: (jobs.extend(request.job for request in requests), run(requests, *args))[1],
    )
    several = [series(0, 40, 5), series(1, 7, 5)]
    predictor.predict_batch(*map(list, zip(*several, strict=True)), 5, seed=4)
    assert len(jobs) == 2
    assert len(set(jobs) - {None}) == 1


def test_series_may_differ_in_horizon(predictor):
    several = [series(0, 20, 3), series(1, 20, 8)]
    frames = predictor.predict_batch(*map(list, zip(*several, strict=True)), [3, 8], seed=4)
    assert [len(frame) for frame in frames] == [3, 8]


def test_without_a_seed_one_is_drawn_from_torch_and_reported(predictor):
    given = series()
    torch.manual_seed(5)
    first = predictor.predict(*given, 5)
    second = predictor.predict(*given, 5)
    assert first.attrs["seed"] != second.attrs["seed"]
    again = predictor.predict(*given, 5, seed=first.attrs["seed"])
    pd.testing.assert_frame_equal(first, again)
    torch.manual_seed(5)
    pd.testing.assert_frame_equal(first, predictor.predict(*given, 5))


def test_paths_and_their_repair(predictor):
    df, past, future = series()
    raw, repaired = (
        predictor.forecast_batch([df], [past], [future], 5, sample_count=6, seed=2, repair=repair)[0]
        for repair in (False, True)
    )
    assert raw.paths.shape == (6, 5, 6)
    assert not np.array_equal(raw.paths, repaired.paths)
    assert np.array_equal(repair_bars(raw.paths), repaired.paths)


def test_a_horizon_beyond_the_context_is_refused_and_frees_the_engine(predictor, monkeypatch):
    engines: list[Engine] = []

    def build(*args, **options) -> Engine:
        engines.append(build_engine(*args, **options))
        return engines[-1]

    monkeypatch.setattr("kronos_model.predictor.build_engine", build)
    predictor = KronosPredictor(predictor.model, predictor.tokenizer, device="cpu", max_context=64)
    several = [series(0, 20, 5), series(1, 20, 65)]
    with pytest.raises(InputError, match="max_context 64") as refused:
        predictor.predict_batch(*map(list, zip(*several, strict=True)), [5, 65])
    assert refused.value.code == "PRED_LEN_TOO_LONG"
    assert not engines[0].has_work


def test_a_lookback_beyond_the_context_uses_all_of_it_for_scaling(predictor):
    df, past, future = series(0, 100, 4)
    whole = predictor.predict(df, past, future, 4, seed=1)
    cut = predictor.predict(df.iloc[-64:], past.iloc[-64:], future, 4, seed=1)
    assert not np.allclose(whole, cut)


@pytest.mark.parametrize(
    ("change", "error", "code", "field"),
    [
        (lambda df, x, y: (df.drop(columns="high"), x, y), CandleError, "MISSING_COLUMN", "high"),
        (lambda df, x, y: (df.assign(close=np.nan), x, y), CandleError, "NOT_FINITE", "close"),
        (lambda df, x, y: (df.assign(close="?"), x, y), CandleError, "BAD_TYPE", "close"),
        (lambda df, x, y: (df, x[:-1], y), TimestampError, "LENGTH_MISMATCH", "x_timestamp"),
        (lambda df, x, y: (df, x, y[:-1]), TimestampError, "LENGTH_MISMATCH", "y_timestamp"),
        (lambda df, x, y: (df, x, [pd.NaT, *y[1:]]), TimestampError, "BAD_TIMESTAMP", "y_timestamp"),
    ],
)
def test_bad_input_is_refused_by_name(predictor, change, error, code, field):
    with pytest.raises(error) as refused:
        predictor.predict(*change(*series()), 5)
    assert (refused.value.code, refused.value.field) == (code, field)


def test_a_negative_seed_is_refused(predictor):
    with pytest.raises(InputError, match="seed"):
        predictor.predict(*series(), 5, seed=-1)


def test_a_time_zone_changes_nothing_about_the_wall_clock(predictor):
    df, past, future = series()
    naive = predictor.predict(df, past, future, 5, seed=1)
    zoned = predictor.predict(
        df, past.dt.tz_localize("Asia/Shanghai"), future.dt.tz_localize("Asia/Shanghai"), 5, seed=1
    )
    assert np.array_equal(naive, zoned)


def test_a_whole_forecast_on_the_cpu_makes_no_cuda_call(predictor, no_cuda_calls):
    pair = predictor.model, predictor.tokenizer
    KronosPredictor(*pair, device="cpu", max_context=64).predict(*series(), 5, seed=1)
    assert no_cuda_calls == []


def test_a_missing_device_falls_back_with_a_warning(predictor):
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device: run it with CUDA_VISIBLE_DEVICES=")
    fallen_back = KronosPredictor(predictor.model, predictor.tokenizer, device="cuda:0", max_context=64)
    assert fallen_back.device.type == "cpu"
    assert "Falling back to CPU" in fallen_back.device_warning


def test_threads_may_share_a_predictor(predictor):
    several = [series(seed) for seed in range(4)] * 3
    alone = [predictor.predict(*given, 5, seed=1) for given in several]
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(lambda given: predictor.predict(*given, 5, seed=1), several))
    for ours, theirs in zip(together, alone, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_weights_of_another_type_are_refused_with_a_remedy(predictor):
    model = Kronos.from_pretrained("kronos-tiny").to(torch.bfloat16)
    with pytest.raises(InputError, match=r"bfloat16.*\.float\(\)"):
        KronosPredictor(model, predictor.tokenizer, device="cpu")
