"""Feeds over HTTP, with the fake's forecasts for a worker, and who may see which."""

import json
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient
from pydantic import SecretStr

from api_stub.main import create_app
from kronos_client.contract.columns import encode_column
from kronos_client.feeds.store import FeedStore
from kronos_client.redis.connection import unanswered
from kronos_model.bars.synthetic import candles
from tests.api_stub.conftest import ADDRESS
from tests.kronos_client.feeds.test_forecasts import HandWorker

UP = "close>last at end"
OPTIONS = {"pred_len": 3, "sample_count": 8, "events": [UP]}
PAIR = "BTC/USDT"
KEYS = {
    "one": "one-key-of-16-chars:predict",
    "two": "two-key-of-16-chars:predict",
    "all": "all-key-of-16-chars",
}


def series(name: str, first: int = 0, last: int = 20) -> dict:
    columns = candles(seed=len(name), bars=60).as_dict()
    return {"id": name} | {title: [*values][first:last] for title, values in columns.items()}


def cut(one: dict, first: int, last: int) -> dict:
    return {title: values[first:last] for title, values in one.items() if title != "id"}


LAST_OF_ALL = series("A", 0, 1) | {"timestamps": ["9999-12-31T23:59:59-14:00"]}


@pytest.fixture
def worker(redis, redis_server):
    return HandWorker(redis, redis_server.url)


def test_appended_bars_become_a_ranked_table(http, worker):
    made = http.put("/v1/feeds/us", json=OPTIONS).json()
    assert (made["name"], made["options"]["pred_len"], made["series"]) == ("us", 3, [])
    bars = {"series": [series("A"), series(PAIR)]}
    assert http.post("/v1/feeds/us/bars", json=bars).json() == {
        "num_new": 40, "num_corrected": 0, "num_held_back": 0, "held_until": None, "changed": ["A", PAIR],
        "warnings": [],
    }  # fmt: skip
    assert http.post("/v1/feeds/us/bars", json=bars).json()["num_new"] == 0
    worker.run()
    rows = http.get("/v1/feeds/us/latest", params={"rank": UP}).json()["rows"]
    assert sorted(row["id"] for row in rows) == ["A", PAIR]
    assert rows[0][UP] >= rows[1][UP]
    assert rows[0]["close_q0.1"] < rows[0]["close_q0.9"]
    assert "closes" not in rows[0]
    assert http.get("/v1/feeds/us/latest", params={"max_age_s": 0}).json()["rows"] == []
    before = http.get("/v1/feeds/us/series/A").json()
    assert before["bars"] == {title: values for title, values in series("A").items() if title != "id"}
    assert before["past"] == []
    for path in ("BTC%2FUSDT", "BTC/USDT"):
        assert http.get(f"/v1/feeds/us/series/{path}").json()["newest"]["series"] == PAIR
    http.post("/v1/feeds/us/bars", json={"series": [series("A", 20, 22)]})
    worker.run()
    found = http.get("/v1/feeds/us/series/A").json()
    assert found["bars"]["timestamps"] == series("A", 0, 22)["timestamps"]
    assert found["newest"]["last_time"] == found["bars"]["timestamps"][-1]
    (past,) = found["past"]
    assert past["timestamps"] == before["newest"]["forecast"]["timestamps"]
    for level, columns in before["newest"]["forecast"]["quantiles"].items():
        assert past["quantiles"][level]["close"] == pytest.approx(columns["close"], rel=1e-6)
    scores = http.get("/v1/feeds/us/scores", params={"days": 1}).json()["rows"]
    assert [(row["id"], row["num_scored"] + row["num_missing"]) for row in scores] == [(None, 2), ("A", 2)]
    assert http.get("/v1/feeds").json() == {"feeds": ["us"]}
    assert http.delete("/v1/feeds/us").status_code == 204
    assert http.get("/v1/feeds/us").json()["code"] == "FEED_NOT_FOUND"


@pytest.mark.parametrize("wanted", [1, 7, 200])
def test_the_table_has_the_newest_closes(http, worker, wanted):
    http.put("/v1/feeds/us", json=OPTIONS | {"missing": "drop"})
    holed = series("BB")
    for name in {*holed} - {"id", "timestamps"}:
        holed[name][17] = 0  # a bar without prices
    for first, last in ((0, 10), (10, 11), (11, 20)):
        parts = [{"id": one["id"], **cut(one, first, last)} for one in (series("A"), holed)]
        assert http.post("/v1/feeds/us/bars", json={"series": parts}).status_code == 200
    rows = http.get("/v1/feeds/us/latest", params={"closes": wanted}).json()["rows"]  # without a forecast
    closes = {row["id"]: row["closes"] for row in rows}
    assert closes["A"] == pytest.approx(series("A")["close"][-wanted:], rel=1e-6)
    assert closes["BB"] == pytest.approx([one for one in holed["close"][-wanted:] if one], rel=1e-6)
    worker.run()
    (row,) = http.get("/v1/feeds/us/latest", params={"closes": 2, "rank": UP}).json()["rows"][:1]
    assert len(row["closes"]) == 2


def test_a_missing_price_is_null_where_the_feed_keeps_such_bars(http, worker):
    holed = series("A")
    for title in ("open", "high", "low", "close"):
        holed[title][17] = None
    for name, missing in (("kept", "drop"), ("strict", "error")):
        http.put(f"/v1/feeds/{name}", json=OPTIONS | {"missing": missing})
    assert http.post("/v1/feeds/kept/bars", json={"series": [holed]}).json()["num_new"] == 20
    worker.run()
    found = http.get("/v1/feeds/kept/series/A").json()
    assert found["bars"]["close"] == holed["close"]
    assert found["newest"]["last_time"] == holed["timestamps"][-1]
    refused = http.post("/v1/feeds/strict/bars", json={"series": [holed]}).json()
    assert (refused["code"], refused["details"]["row"]) == ("NOT_FINITE", 17)


def test_columns_may_be_base64_as_in_a_forecast_job(http):
    http.put("/v1/feeds/us", json=OPTIONS)
    whole = series("A")
    sent = whole | {title: encode_column(whole[title]) for title in ("open", "high", "low", "close")}
    assert http.post("/v1/feeds/us/bars", json={"series": [sent]}).json()["num_new"] == 20
    assert http.post("/v1/feeds/us/bars", json={"series": [whole]}).json()["num_new"] == 0
    problem = http.post("/v1/feeds/us/bars", json={"series": [sent | {"close": "x"}]}).json()
    found = problem["code"], problem["field"], problem["details"]["series"]
    assert found == ("BAD_ENCODING", "close", "A")


def test_bars_of_all_series_but_a_lost_one_are_taken(http, redis):
    http.put("/v1/feeds/us", json=OPTIONS)
    http.post("/v1/feeds/us/bars", json={"series": [series("A"), series("BB")]})
    (records,) = redis.keys("kronos:feed_series:*")
    redis.hdel(records, "A")
    later = {"series": [series("A", 20, 21), series("BB", 20, 21)]}
    answer = http.post("/v1/feeds/us/bars", json=later)
    assert (answer.status_code, answer.json()["details"]["lost"]) == (410, ["A"])
    assert len(http.get("/v1/feeds/us/series/BB").json()["bars"]["close"]) == 21
    whole = {"series": [series("A", 0, 21)], "replace": True}
    assert http.post("/v1/feeds/us/bars", json=whole).json()["changed"] == ["A"]


def test_each_new_forecast_is_an_event_and_none_is_missed_after_a_break(http, worker):
    http.put("/v1/feeds/us", json=OPTIONS)
    http.post("/v1/feeds/us/bars", json={"series": [series("A"), series("BB")]})
    worker.run()
    http.delete("/v1/feeds/none")
    seen = []
    for after in ("0", None):
        headers = {"Last-Event-ID": after or seen[0]["id"]}
        with http.stream("GET", "/v1/feeds/us/events", headers=headers) as answer:
            for line in answer.iter_lines():
                if line.startswith("data:"):
                    seen.append(json.loads(line[5:]))
                    break
    assert {one["series"] for one in seen} == {"A", "BB"}


def test_events_go_on_after_an_outage_of_redis(http, worker, monkeypatch):
    http.put("/v1/feeds/us", json=OPTIONS)
    http.post("/v1/feeds/us/bars", json={"series": [series("A")]})
    worker.run()
    errors, updates = [unanswered()] * 2, FeedStore.updates

    def failing(*args):
        if errors:
            raise errors.pop()
        return updates(*args)

    monkeypatch.setattr(FeedStore, "updates", failing)
    with http.stream("GET", "/v1/feeds/us/events", headers={"Last-Event-ID": "0"}) as answer:
        first = next(line for line in answer.iter_lines() if line.startswith("event:"))
    assert first == "event: update"
    assert not errors


@pytest.mark.parametrize(
    ("method", "path", "body", "code", "field"),
    [
        ("PUT", "/v1/feeds/us", {"pred_lem": 3}, "UNKNOWN_FIELD", "pred_lem"),
        ("PUT", "/v1/feeds/us", {}, "MISSING_FIELD", "pred_len"),
        ("PUT", "/v1/feeds/us", {"pred_len": "many"}, "BAD_TYPE", "pred_len"),
        ("PUT", "/v1/feeds/other", OPTIONS | {"pred_len": 4}, "FEED_CONFLICT", "pred_len"),
        ("POST", "/v1/feeds/us/bars", {"series": [series("A")]}, "FEED_NOT_FOUND", "name"),
        ("POST", "/v1/feeds/other/bars", {"series": [series("A"), series("A")]}, "DUPLICATE_ID", "series"),
        ("POST", "/v1/feeds/other/bars", {"series": [series("A", 0, 0)]}, "EMPTY_SERIES", "timestamps"),
        ("POST", "/v1/feeds/other/bars", {"series": [LAST_OF_ALL]}, "BAD_TIMESTAMP", "timestamps"),
        ("GET", "/v1/feeds/other/latest?rank=close>last at 2", None, "BAD_VALUE", "event"),
        ("GET", "/v1/feeds/other/series/A", None, "FEED_NOT_FOUND", "series_id"),
    ],
)
def test_what_is_wrong_is_named(http, method, path, body, code, field):
    http.put("/v1/feeds/other", json=OPTIONS)
    problem = http.request(method, path, json=body).json()
    assert (problem["code"], problem["field"]) == (code, field)


def test_a_feed_belongs_to_its_key(settings):
    settings = settings.model_copy(update={"api_keys": SecretStr(",".join(KEYS.values()))})
    with TestClient(create_app(settings), base_url=ADDRESS) as http:

        def ask(method: str, path: str, key: str, **given):
            headers = {"Authorization": f"Bearer {KEYS[key].partition(':')[0]}"}
            return http.request(method, f"/v1/feeds{path}", headers=headers, **given)

        assert ask("PUT", "/mine", "one", json=OPTIONS).status_code == 200
        assert ask("GET", "", "one").json() == {"feeds": ["mine"]}
        assert ask("GET", "", "two").json() == {"feeds": []}
        assert ask("DELETE", "/mine", "two").json()["code"] == "FEED_NOT_FOUND"
        (name,) = ask("GET", "", "all").json()["feeds"]
        assert name.endswith("/mine")
        assert (
            ask("GET", f"/{quote(name, safe='')}", "all").json()["options"]["pred_len"] == OPTIONS["pred_len"]
        )
        assert ask("GET", f"/{name}/latest", "all").json() == {"rows": []}
        assert ask("GET", "/mine", "one").status_code == 200
