"""The code blocks of README and docs."""

import re
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(
    r"(?:^ *<!-- not run: (?P<reason>[^\n]+) -->\n)?"
    r"^ *```(?P<language>\w*)(?: (?P<title>\S+))?\n(?P<text>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A block between lines of three backquotes.

    Attributes:
        language: of ``text`` nothing could run: drawings and what a program prints.
        title: the name of a file after the language.
        reason: why it is not run, from a comment in the line above, ``<!-- not run: needs Docker -->``.
    """

    page: str
    line: int
    language: str
    title: str | None
    text: str
    reason: str | None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    """All blocks of a page, in its order."""
    content = page.read_text(encoding="utf-8")
    return [
        Block(
            page.relative_to(ROOT).as_posix(),
            content.count("\n", 0, match.start("language")) + 1,
            match["language"],
            match["title"],
            dedent(match["text"]),
            match["reason"],
        )
        for match in _BLOCK.finditer(content)
    ]


def commands_of(block: Block) -> list[str]:
    """The commands of a shell's block, each in one line without its comment."""
    text = re.sub(r"\\\n\s*", " ", block.text)
    return [line for line in (re.sub(r"(^|\s)#\s.*", "", line).strip() for line in text.splitlines()) if line]
