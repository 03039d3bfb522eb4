"""The page of a report: whole, with every chart, and loading nothing."""

import re

from kronos_client.backtesting import reporting
from kronos_client.testing import FakeForecastClient
from tests.kronos_client.backtesting.test_run import CANDLES, OPTIONS, walk


def test_the_page_shows_verdict_scores_and_charts_and_loads_nothing(tmp_path):
    with FakeForecastClient() as client:
        candles = {"<b>a": CANDLES["a"], "b": CANDLES["b"], "c": walk(3)}
        report = client.backtest(candles, tmp_path, models=["one & two"], **OPTIONS)
    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg") == page.count("</svg>") == 4 + 2 + 6
    for line in report["models"]["one & two"]["verdict"]:
        assert line.replace("&", "&amp;").replace("'", "&#x27;") in page
    assert "one &amp; two" in page
    assert "Long the top 1 by predicted return," in page
    assert ">by momentum</th>" in page
    assert "<b>a" not in page
    assert not re.search(r"(src|href)=\"?https?:|@import|<script|<link", page)


def test_names_with_dollar_signs_and_many_models_are_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr(reporting, "SHOWN_WINDOWS", 1)
    models = [f"model {number}" for number in range(9)]
    with FakeForecastClient() as client:
        client.backtest({"a$b_{$": CANDLES["a"]}, tmp_path, models=models, **OPTIONS | {"windows": 2})
    assert (tmp_path / "report.html").exists()


def test_windows_of_a_close_that_never_changes_are_neither_best_nor_worst(tmp_path, monkeypatch):
    drawn = []
    for name in ("_draw_reliability", "_draw_pit", "_draw_coverage", "_draw_lines"):
        monkeypatch.setattr(reporting, name, lambda *_: None)
    monkeypatch.setattr(
        reporting,
        "_draw_window",
        lambda _, run, window: drawn.append(run.plan.window(window).name),
    )
    flat = CANDLES["a"].assign(open=10.0, high=10.0, low=10.0, close=10.0)
    with FakeForecastClient() as client:
        report = client.backtest({"a": CANDLES["a"], "flat": flat}, tmp_path, **OPTIONS | {"windows": 4})
    assert drawn == ["a"] * 6
    assert {window["instrument"] for window in report["worst_windows"]} == {"a"}
