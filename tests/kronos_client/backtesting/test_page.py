"""The page of a report: whole, with every chart, and loading nothing."""

import re

from kronos_client.testing import FakeForecastClient
from tests.kronos_client.backtesting.test_run import CANDLES, OPTIONS


def test_the_page_shows_verdict_scores_and_charts_and_loads_nothing(tmp_path):
    with FakeForecastClient() as client:
        report = client.backtest({"<b>a": CANDLES["a"]}, tmp_path, models=["one & two"], **OPTIONS)
    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg") == page.count("</svg>") == 4 + 6
    for line in report["models"]["one & two"]["verdict"]:
        assert line.replace("&", "&amp;").replace("'", "&#x27;") in page
    assert "one &amp; two" in page
    assert "<b>a" not in page
    assert not re.search(r"(src|href)=\"?https?:|@import|<script|<link", page)
