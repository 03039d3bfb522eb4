"""The README's tables and commands against the code."""

import re
from pathlib import Path

from pydantic import SecretStr

from worker.cli import cli
from worker.settings import Settings

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def setting_rows() -> list[str]:
    """The settings table as the code has it."""
    rows = []
    for name, field in Settings.model_fields.items():
        default = field.default.get_secret_value() if isinstance(field.default, SecretStr) else field.default
        shown = "" if default is None else f"`{default}`"
        rows.append(f"| `KRONOS_{name.upper()}` | {shown} | {field.description} |")
    return rows


def test_the_settings_table_is_that_of_the_code():
    assert [line for line in README.splitlines() if line.startswith("| `KRONOS_")] == setting_rows()


def test_every_command_that_the_docs_name_exists():
    known = {*cli.commands, "test", "setup"}
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        named = set(re.findall(r"(?:^|[`\s])(?:\./)?kronos ([a-z]+)", page.read_text(), re.MULTILINE))
        commands = {word for word in named if f"./kronos {word}" in page.read_text()}
        assert commands <= known, f"{page.name} names {commands - known}"


def test_links_between_pages_lead_somewhere():
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_nothing_is_left_to_be_filled_in():
    for page in (ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))):
        assert not re.findall(r"\b(?:TODO|FIXME|TBD|[A-Z]+_TABLE)\b", page.read_text()), page.name
