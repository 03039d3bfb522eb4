"""Variables that look like settings but are not."""

import os

import pytest

from kronos_cli.checks.variables import known_names, variable_findings
from tests.all_settings import AllSettings


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("KRONOS_")]:
        monkeypatch.delenv(name)


def test_every_setting_of_every_wing_is_known() -> None:
    names = {name.upper() for name in AllSettings.model_fields}
    assert known_names() == names | {f"{name}_FILE" for name in names}


@pytest.mark.parametrize(
    ("variable", "remedy"),
    [
        ("KRONOS_MODLE", "write KRONOS_MODEL, or unset it"),
        ("KRONOS_REDIS_UR", "write KRONOS_REDIS_URL, or unset it"),
        ("KRONOS_API_KEY", "write KRONOS_API_KEYS, or unset it"),
        ("KRONOS_XYZZY_QWERTZ", "unset it"),
    ],
)
def test_an_unknown_variable_is_named_with_the_closest_setting(
    monkeypatch: pytest.MonkeyPatch, variable: str, remedy: str
) -> None:
    monkeypatch.setenv("KRONOS_MAX_JOBS", "3")
    monkeypatch.setenv("KRONOS_API_KEYS_FILE", "/keys")
    monkeypatch.setenv(variable, "x")
    (finding,) = variable_findings()
    assert (finding.level, finding.remedy) == ("warning", remedy)
    assert variable in finding.message
