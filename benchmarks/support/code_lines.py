"""Lines of Python code, without blank lines, comments and docstrings."""

import ast
import io
import tokenize
from pathlib import Path
from typing import Final

NO_CODE: Final = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip


def num_code_lines(folder: Path) -> int:
    """Of all Python files below a folder."""
    return sum(_count(path.read_text(encoding="utf-8")) for path in folder.rglob("*.py"))


def _count(text: str) -> int:
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(ast.Constant(str()), lineno=first, end_lineno=int(last)):
                lines.difference_update(range(first, last + 1))
    return len(lines)
