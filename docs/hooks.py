"""mkdocs hooks: add the pages at the repository's root, and refuse pages that load from other hosts."""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
ROOT_PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "extend/contributing.md",
    "CHANGELOG.md": "extend/changes.md",
    "SECURITY.md": "operate/reporting.md",
}
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!\w+:|#)([^)#]+)(#[^)]*)?\)")
SCRIPT = re.compile(r"^```(\w+) (\S+\.\w+)$", re.MULTILINE)
NOT_RUN = re.compile(r"^ *<!-- not run: .* -->\n", re.MULTILINE)
FOREIGN = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*?(?:src|href)=[\"']?(?:https?:)?//[^>]*>")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie at the repository's root."""
    for name, uri in ROOT_PAGES.items():
        files.append(
            File.generated(config, uri, content=with_links_from((ROOT / name).read_text(), uri, files))
        )
    return files


def with_links_from(text: str, uri: str, files: Files) -> str:
    """A page of the root with its links as they are from ``uri``; files outside the site lose theirs."""

    def moved(match: re.Match[str]) -> str:
        image, words, target, anchor = match.groups()
        there = ROOT_PAGES.get(target) or target.removeprefix("docs/")
        if there not in ROOT_PAGES.values() and files.get_file_from_path(there) is None:
            return words
        return f"{image}[{words}]({posixpath.relpath(there, posixpath.dirname(uri) or '.')}{anchor or ''})"

    return LINK.sub(moved, text)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Show a script's name as its title, and no marks for tests."""
    return SCRIPT.sub(r'```\1 title="\2"', NOT_RUN.sub("", markdown))


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Refuse a page that would load anything from another host."""
    if foreign := FOREIGN.search(output):
        raise PluginError(f"{page.file.src_uri} loads from another host: {foreign.group()}")
    return output
