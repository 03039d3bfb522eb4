"""Text from outside becomes short, safe for terminals, and free of local paths."""

import pytest

from kronos_model.text import cut, dotted, escaped, excerpt, one_line, printable, without_paths


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The folder '/srv/my models/x' has no config.json.", "The folder '…/x' has no config.json."),
        ('"/srv/models/x/" is damaged', '"…/x" is damaged'),
        ("/srv/x/config.json cannot be read as JSON: line 1", "…/config.json cannot be read as JSON: line 1"),
        (
            "[Errno 28] No space left: '/srv/cache/ab.incomplete'",
            "[Errno 28] No space left: '…/ab.incomplete'",
        ),
        ("it lies in /srv/models/x.", "it lies in …/x."),
        ("(/srv/models/x, /srv/models/y)", "(…/x, …/y)"),
        ("fetched from https://hub.example.com/a/b (Timeout)", None),
        ("'NeoQuasar/Kronos-small' is gated", None),
        ("model/model.safetensors of the registered model a@1", None),
        ("open and/or close; 3 / 4; +/-5", None),
        ("'/' is a folder", None),
        ("", None),
    ],
)
def test_an_absolute_path_is_cut_to_its_last_name(text: str, expected: str | None) -> None:
    assert without_paths(text) == (text if expected is None else expected)


def test_paths_in_nested_details_are_cut() -> None:
    details = {"model": {"id": "'/srv/a'"}, "missing": ["/srv/b", 3, None], "/srv/c": True}
    assert without_paths(details) == {"model": {"id": "'…/a'"}, "missing": ["…/b", 3, None], "…/c": True}


def test_unprintable_characters_are_replaced_or_escaped() -> None:
    text = "a\x1b[31m\nb"
    assert (printable(text), printable(text, "?")) == ("a�[31m�b", "a?[31m?b")
    assert escaped(text, 100) == "a\\x1b[31m\\nb"
    assert one_line("a\n\t b ") == "a b"


def test_long_text_is_cut() -> None:
    assert (cut("abcd", 4), cut("abcde", 4)) == ("abcd", "abc…")
    assert escaped("\n" * 10, 5) == "\\n\\n…"
    assert dotted(["files", 3, "x\n" + 1000 * "y"], 5) == "files.3.x\\nyyy"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "null"),
        (True, "true"),
        ("a\n", r"'a\n'"),
        ("x" * 61, f"'{'x' * 60}'…"),
        (10**18, "a huge integer"),
        (1.5, "1.5"),
        ([1, 2], "an array of 2"),
        ({"a": 1}, "an object"),
        (b"", "a bytes"),
    ],
)
def test_a_value_in_a_message_never_shows_what_a_container_holds(value: object, expected: str) -> None:
    assert excerpt(value) == expected
