"""Lists of models that jobs may name, and settings that the next version will not have."""

import pytest

from kronos_client.settings import RETIRED, ModelSpec, _warn_of, parse_model_specs
from tests.all_settings import AllSettings


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, []),
        ("", []),
        (" , ", []),
        ("kronos-tiny", [ModelSpec("kronos-tiny")]),
        ("/m=/t", [ModelSpec("/m", "/t")]),
        ("o/m@abc", [ModelSpec("o/m", None, "abc")]),
        (" o/m@abc = o/t@def ,", [ModelSpec("o/m", "o/t", "abc", "def")]),
        ("a,b=c", [ModelSpec("a"), ModelSpec("b", "c")]),
    ],
)
def test_a_list_is_read_as_it_is_documented(text, expected):
    names = parse_model_specs(text)
    assert list(names.values()) == expected
    assert list(names) == [name.model for name in expected]


@pytest.mark.parametrize("text", ["a=b=c", "a=", "=b", "a@", "@abc", "a=b@", "a,a", "a,a=b"])
def test_what_is_no_such_list_is_refused(text):
    with pytest.raises(ValueError, match=r"write MODEL|listed twice"):
        parse_model_specs(text)


def test_a_retired_setting_works_for_the_last_time_with_one_warning(monkeypatch, caplog):
    _warn_of.cache_clear()
    given = dict.fromkeys(RETIRED, "2000") | {
        "shared_exchanges": "true",
        "low_priority_max_wait_s": "an hour",
    }
    for name, text in given.items():
        monkeypatch.setenv(f"KRONOS_{name.upper()}", text)
    for _ in range(2):
        settings = AllSettings.load()
    assert (settings.max_result_bytes, settings.api_max_body_bytes) == (2000, 2000)
    assert settings.shared_exchanges
    assert len(caplog.messages) == len(RETIRED)
    assert "KRONOS_MAX_DEAD_MESSAGES: unset it: 1000 are kept" in caplog.text


def test_limits_of_results_and_bodies_follow_that_of_a_job():
    settings = AllSettings.load(max_message_bytes=3000)
    assert settings.limits().max_result_bytes == settings.api_max_body_bytes == 6000
    assert AllSettings.model_construct().max_result_bytes == 16 * 2**20
