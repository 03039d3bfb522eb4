"""docs/reference/settings.md is what the code reads of the environment."""

import re

from docs.settings_page import PAGE, page
from tests.all_settings import AllSettings


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "out of step: run `make settings`"


def test_each_setting_stands_once() -> None:
    named = re.findall(r"^\| `KRONOS_(\w+)` ", page(), re.MULTILINE)
    assert sorted(named) == sorted(name.upper() for name in AllSettings.model_fields)
