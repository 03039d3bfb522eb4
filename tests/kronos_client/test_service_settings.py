"""How operators list the models that jobs may name."""

import pytest

from kronos_client.settings import ModelSpec, parse_model_specs


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
