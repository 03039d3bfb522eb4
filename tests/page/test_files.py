"""The page's files."""

import hashlib
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from kronos_model.bars.synthetic import candles
from tests.integration.conftest import ROOT

PAGE = ROOT / "api_stub" / "page"
VENDOR = PAGE / "vendor"
VENDORED = VENDOR / "lightweight-charts"
OWN = [
    path
    for path in PAGE.rglob("*")
    if path.is_file() and path.is_relative_to(PAGE) and VENDOR not in path.parents
]
SEED = 11


def test_the_sample_equals_the_synthetic_candles():
    sample = pd.read_csv(PAGE / "sample.csv")
    expected = pd.DataFrame(candles(SEED, len(sample)).as_dict())
    assert list(sample) == list(expected)
    assert list(sample["timestamps"]) == list(expected["timestamps"])
    np.testing.assert_array_equal(sample.iloc[:, 1:].to_numpy(), expected.iloc[:, 1:].to_numpy())


def test_the_charting_library_is_the_published_one_with_its_licence():
    readme = (VENDORED / "README.md").read_text()
    digest = hashlib.sha256((VENDORED / "lightweight-charts.js").read_bytes()).hexdigest()
    assert digest in readme
    version = re.search(r"lightweight-charts (\d+\.\d+\.\d+)", readme)
    assert version is not None
    assert f"Lightweight Charts™ v{version[1]}" in (VENDORED / "lightweight-charts.js").read_text()[:200]
    assert "Apache License" in (VENDORED / "LICENSE").read_text()
    notice = (VENDORED / "NOTICE").read_text()
    footer = re.sub(r"<[^>]*>|\s+", " ", (PAGE / "index.html").read_text())
    for line in notice.split("\n"):
        assert re.sub(r"\s+", " ", line) in re.sub(r"\s+", " ", footer)


def test_the_typeface_is_the_published_one_with_its_licence():
    folder = VENDOR / "inter"
    digest = hashlib.sha256((folder / "inter.woff2").read_bytes()).hexdigest()
    assert digest in (folder / "README.md").read_text()
    assert "SIL OPEN FONT LICENSE Version 1.1" in (folder / "LICENSE").read_text()


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_no_file_loads_from_another_host_or_has_inline_code(path: Path):
    text = path.read_text()
    addresses = set(re.findall(r"https?://[^\s\"'<)]+", text))
    assert addresses <= {"https://www.tradingview.com/", "http://www.w3.org/2000/svg"}
    if path.suffix == ".html":
        assert not re.search(r"\sstyle=|<style|\son\w+=|<script(?![^>]*\ssrc=)|javascript:", text)
    if path.suffix == ".js":
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text
        )
