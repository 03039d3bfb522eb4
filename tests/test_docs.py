"""README and docs against the code."""

import re
import subprocess
from importlib import import_module
from pathlib import Path

import pytest

from api_stub.problems import STATUSES
from docs.generate import FOLDER, PAGES
from kronos_cli.main import cli
from kronos_client.settings import RETIRED
from tests.all_settings import AllSettings

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
DOCS = sorted((ROOT / "docs").rglob("*.md"))
ALL = [*sorted(ROOT.glob("*.md")), *DOCS]


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_that_of_the_code(name):
    assert (FOLDER / name).read_text(encoding="utf-8") == PAGES[name](), "out of step: run `make reference`"


def test_the_page_of_errors_is_not_written_while_a_code_has_no_status(monkeypatch):
    monkeypatch.delitem(STATUSES, "NOT_CALIBRATED")
    with pytest.raises(SystemExit, match="NOT_CALIBRATED: add an HTTP status in _CODES"):
        PAGES["errors.md"]()


def test_each_setting_stands_once():
    named = re.findall(r"^\| `KRONOS_(\w+)` ", PAGES["settings.md"](), re.MULTILINE)
    assert sorted(named) == sorted(name.upper() for name in AllSettings.model_fields.keys() - RETIRED.keys())


def test_the_readme_is_one_screen_of_words():
    assert len(README.read_text().split()) <= 900


@pytest.mark.parametrize(
    "package", ["kronos_client", "kronos_client.testing", "kronos_model", "kronos_model.finetuning"]
)
def test_the_python_api_lists_every_public_name(package):
    page = (FOLDER / "api.md").read_text(encoding="utf-8").splitlines()
    module = import_module(package)
    for name in module.__all__:
        public = getattr(module, name)
        public = getattr(public, "__origin__", public)  # of a handle's alias
        assert f"::: {public.__module__}.{public.__qualname__}" in page


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
    for page in ALL:
        named = commands_in(page.read_text())
        assert named <= known, f"{page.name} names {named - known}"
    assert {"demo", "up", "worker"} <= commands_in(README.read_text())


def test_links_between_pages_lead_somewhere():
    for page in ALL:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def anchors(page: Path) -> set[str]:
    """What the headings of a page can be linked by, as GitHub makes it of them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_into_pages_lead_to_a_heading():
    for page in ALL:
        for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text()):
            there = (page.parent / target) if target else page
            assert anchor in anchors(there), f"{page.name} links to {target}#{anchor}"


PATH = re.compile(
    r"(?<![\w./-])((?:kronos_model|kronos_client|worker|kronos_cli|api_stub|tests|benchmarks|deploy|docs|tools)/[\w./-]*\w/?)"
)


def test_paths_that_the_docs_name_exist():
    for page in ALL:
        for path in PATH.findall("\n".join(block or span for block, span in CODE.findall(page.read_text()))):
            assert (ROOT / path).exists(), f"{page.name} names {path}"


def test_each_common_change_has_a_place_to_start():
    text = (ROOT / "docs" / "how-it-works" / "architecture.md").read_text()
    _, _, *rows = re.findall(
        r"^\|.*", text.partition("## Where a change starts")[2].partition("\n## ")[0], re.MULTILINE
    )
    assert len(rows) >= 20
    for row in rows:
        assert re.search(r"`[\w/.]+`", row.split("|")[2]), row


def test_pages_that_the_code_names_exist():
    """Messages, help texts and comments name pages by their paths."""
    listed = subprocess.run(
        ["git", "ls-files", "*.py", "*.yml", "*.yaml", "*.toml", "*.sh", "*.json", "Makefile", "kronos"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("needs a git checkout")
    for name in listed.stdout.split():
        for path in re.findall(r"(?<![\w/])docs/[\w/-]+\.md", (ROOT / name).read_text(encoding="utf-8")):
            assert (ROOT / path).exists(), f"{name} names {path}"


def test_each_row_of_troubleshooting_leads_to_its_page():
    text = (ROOT / "docs" / "operate" / "troubleshooting.md").read_text()
    _, _, *rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) >= 6
    for row in rows:
        assert re.search(r"\]\([\w./-]+\.md#", row), row


def test_nothing_is_left_to_be_filled_in():
    for page in ALL:
        assert not re.findall(r"\b(?:TODO|FIXME|TBD|[A-Z]+_TABLE)\b", page.read_text()), page.name
