"""How operators list the models that jobs may name."""

import pytest

from kronos_client.model_spec import ModelName, parse_model_names


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, []),
        ("", []),
        (" , ", []),
        ("kronos-tiny", [ModelName("kronos-tiny")]),
        ("/m=/t", [ModelName("/m", "/t")]),
        ("o/m@abc", [ModelName("o/m", None, "abc")]),
        (" o/m@abc = o/t@def ,", [ModelName("o/m", "o/t", "abc", "def")]),
        ("a,b=c", [ModelName("a"), ModelName("b", "c")]),
    ],
)
def test_a_list_is_read_as_it_is_documented(text, expected):
    names = parse_model_names(text)
    assert list(names.values()) == expected
    assert list(names) == [name.model for name in expected]


@pytest.mark.parametrize("text", ["a=b=c", "a=", "=b", "a@", "@abc", "a=b@", "a,a", "a,a=b"])
def test_what_is_no_such_list_is_refused(text):
    with pytest.raises(ValueError, match=r"write MODEL|there twice"):
        parse_model_names(text)
