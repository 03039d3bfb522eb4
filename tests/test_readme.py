"""The README's tables and commands against the code."""

import re
from pathlib import Path

from kronos_cli.main import cli

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


CODE = re.compile(r"^ *```[^\n]*\n(.*?)^ *```|`([^`\n]+)`", re.MULTILINE | re.DOTALL)
"""Blocks, and what stands between backquotes."""

COMMAND = re.compile(
    r"(?:^|[|;&(])[ \t$]*"  # where a shell begins a command
    r"(?:[A-Z_]+=\S*[ \t]+)*"  # for which variables are set
    r"(?:exec[ \t]+)?(?:[\w./$\"{}]*/)?(?:kronos|python[\d.]* (?:-P )?-m kronos_cli) ([a-z][\w-]*)",
    re.MULTILINE,
)


def commands_in(page: str) -> set[str]:
    """The commands of ``kronos`` that a page's code names."""
    return {name for block, span in CODE.findall(page) for name in COMMAND.findall(block or span)}


def test_every_command_that_the_docs_name_exists():
    known = {*cli.commands, "test", "setup"}
    for page in (ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))):
        named = commands_in(page.read_text())
        assert named <= known, f"{page.name} names {named - known}"
    assert {"demo", "up", "test"} <= commands_in(README)


def test_a_command_that_does_not_exist_would_be_noticed():
    for text in (
        "`kronos bogus`",
        "`./kronos bogus --json`",
        "```\nkronos bogus x\n```",
        "```sh\nKRONOS_MODEL=x ./kronos bogus\n```",
        '```\neval "$(./kronos bogus bash)"\n```',
        "`cd x && kronos bogus`",
        "`python -m kronos_cli bogus`",
        "```\n$ .venv/bin/kronos bogus\n```",
    ):
        assert commands_in(f"Some words: {text}\nand others.\n") | commands_in(f"{text}\n") == {"bogus"}, text
    assert commands_in("the kronos service; `kubectl -n kronos create secret`; `kronos COMMAND`") == set()


def test_links_between_pages_lead_somewhere():
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def anchors(page: Path) -> set[str]:
    """What the headings of a page can be linked by, as GitHub makes it of them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_into_pages_lead_to_a_heading():
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text()):
            there = (page.parent / target) if target else page
            assert anchor in anchors(there), f"{page.name} links to {target}#{anchor}"


def test_each_row_of_what_may_be_wrong_leads_to_its_page():
    part = README.partition("## When something is wrong")[2].partition("\n## ")[0]
    _, _, *rows = [line for line in part.splitlines() if line.startswith("|")]
    assert len(rows) >= 6
    for row in rows:
        assert re.search(r"\]\(docs/\w+\.md#", row), row


def test_nothing_is_left_to_be_filled_in():
    for page in (ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))):
        assert not re.findall(r"\b(?:TODO|FIXME|TBD|[A-Z]+_TABLE)\b", page.read_text()), page.name
