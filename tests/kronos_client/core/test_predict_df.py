"""predict_df: one long frame in, one out, as Chronos and Nixtla have it."""

import asyncio

import pandas as pd
import pytest

from kronos_client.contract.errors import JobError
from kronos_client.testing import FakeAsyncForecastClient, FakeForecastClient
from kronos_model.bars.synthetic import candles

IDS = ["B", "A", "7"]


@pytest.fixture
def fake():
    with FakeForecastClient() as fake:
        yield fake


@pytest.fixture
def df() -> pd.DataFrame:
    parts = [
        pd.DataFrame(candles(seed=i, bars=60 + i).as_dict()).assign(unique_id=name)
        for i, name in enumerate(IDS)
    ]
    return pd.concat(parts, ignore_index=True).rename(columns={"timestamps": "ds"})


OPTIONS = {"pred_len": 5, "seed": 1}


def test_each_series_is_forecast_as_it_would_be_alone(fake, df):
    answer = fake.predict_df(df, **OPTIONS, quantiles=[0.9, 0.1])
    assert list(answer.columns) == ["unique_id", "ds", "target_name", "predictions", "0.1", "0.9"]
    assert answer["unique_id"].tolist() == [name for name in IDS for _ in range(5)]
    assert set(answer["target_name"]) == {"close"}
    for name in IDS:
        alone = fake.forecast(df[df["unique_id"] == name].rename(columns={"ds": "time"}), **OPTIONS).series[0]
        own = answer[answer["unique_id"] == name]
        assert own["ds"].tolist() == list(alone.timestamps)
        assert own["predictions"].tolist() == list(alone.mean["close"])
        assert own["0.9"].tolist() == list(alone.quantiles["0.9"]["close"])


def test_rows_may_stand_in_any_order_and_times_and_ids_keep_their_type(fake, df):
    df = df.assign(unique_id=df["unique_id"].map({"B": 2, "A": 1, "7": 7}))
    times = pd.to_datetime(df["ds"])
    in_order = fake.predict_df(df.assign(ds=times), **OPTIONS)
    shuffled = fake.predict_df(df.sample(frac=1, random_state=3).assign(ds=times), **OPTIONS)
    assert in_order["ds"].dtype.kind == "M"
    assert in_order["unique_id"].tolist() == [name for name in (2, 1, 7) for _ in range(5)]
    by = ["unique_id", "ds"]
    expected, found = (each.sort_values(by, ignore_index=True) for each in (in_order, shuffled))
    pd.testing.assert_frame_equal(found, expected)
    aware = fake.predict_df(df.assign(ds=times.dt.tz_localize("Asia/Tokyo")), **OPTIONS)
    assert aware["ds"].dt.tz_localize(None).tolist() == in_order["ds"].tolist()


@pytest.mark.parametrize("form", ["ms", "%Y.%m.%d %H:%M"])
def test_times_may_have_any_form_of_files(fake, df, form):
    times = pd.to_datetime(df["ds"])
    written = times.astype("datetime64[ms]").astype("int64") if form == "ms" else times.dt.strftime(form)
    times = times.dt.tz_localize("UTC") if form == "ms" else times
    expected, found = (fake.predict_df(df.assign(ds=each), **OPTIONS) for each in (times, written))
    assert pd.to_datetime(found["ds"]).tolist() == expected["ds"].tolist()
    assert found["predictions"].tolist() == expected["predictions"].tolist()


def test_titles_and_several_targets_are_chosen(fake, df):
    titled = df.rename(columns={"unique_id": "item_id", "ds": "timestamp"})
    answer = fake.predict_df(
        titled, id_column="item_id", timestamp_column="timestamp", target=["high", "low"], **OPTIONS
    )
    assert list(answer.columns[:3]) == ["item_id", "timestamp", "target_name"]
    assert answer["target_name"].tolist() == (["high"] * 5 + ["low"] * 5) * 3


def test_chances_and_statistics_are_columns(fake, df):
    answer = fake.predict_df(df, **OPTIONS, events=["close>last at end"], statistics=True, quantiles=[0.9])
    (alone,) = fake.forecast(
        df[df["unique_id"] == "A"].rename(columns={"ds": "time"}), **OPTIONS, events=["close>last at end"],
        statistics=True, quantiles=[0.9],
    ).series  # fmt: skip
    own = answer[answer["unique_id"] == "A"]
    assert own["close>last at end"].tolist() == [alone.events[0].probability] * 5
    for name in ("total_return", "realised_volatility", "max_drawdown"):
        one = getattr(alone.statistics, name)
        assert (set(own[name]), set(own[f"{name}_q0.9"])) == ({one.mean}, {one.quantiles["0.9"]})


def test_an_error_names_its_series_and_may_be_skipped(fake, df):
    df.loc[df["unique_id"] == "A", "close"] = -1.0
    with pytest.raises(JobError) as raised:
        fake.predict_df(df, **OPTIONS)
    assert raised.value.message.startswith("series 'A': ")
    assert (raised.value.code, raised.value.details["series"]) == ("NON_POSITIVE_PRICE", "A")
    answer = fake.predict_df(df, **OPTIONS, on_error="skip", sample_count=5)
    assert answer["unique_id"].unique().tolist() == ["B", "7"]
    assert answer.attrs["errors"]["A"].startswith("NON_POSITIVE_PRICE: ")
    assert "draw 20 or more" in answer.attrs["warnings"]["B"][0]


@pytest.mark.parametrize(
    ("change", "options", "code", "field"),
    [
        (lambda df: df.drop(columns="ds"), {}, "MISSING_COLUMN", "ds"),
        (lambda df: df, {"id_column": "id"}, "MISSING_COLUMN", "id"),
        (lambda df: df, {"target": "y"}, "UNKNOWN_COLUMN", "target"),
        (lambda df: df, {"target": []}, "BAD_VALUE", "target"),
        (lambda df: df, {"on_error": "ignore"}, "BAD_VALUE", "on_error"),
        (lambda df: df.assign(unique_id=[None, *df["unique_id"][1:]]), {}, "BAD_VALUE", "unique_id"),
        (lambda df: df.head(0), {}, "EMPTY_SERIES", "unique_id"),
        (lambda df: df.to_dict(), {}, "BAD_TYPE", "df"),
    ],
)
def test_a_frame_that_cannot_be_used_is_refused_before_any_job(fake, df, change, options, code, field):
    with pytest.raises(JobError) as raised:
        fake.predict_df(change(df), **OPTIONS, **options)
    assert (raised.value.code, raised.value.field) == (code, field)
    assert not fake.jobs


def test_the_asynchronous_client_answers_the_same(fake, df):
    expected = fake.predict_df(df, **OPTIONS)
    answer = asyncio.run(FakeAsyncForecastClient(fake).predict_df(df, **OPTIONS))
    pd.testing.assert_frame_equal(answer, expected)
