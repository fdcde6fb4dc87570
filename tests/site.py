"""Hooks of mkdocs: what pages link to outside docs/ goes along with them, as it is.

So a link to examples/ leads to the file in the checkout, and on the site to a copy. Folders, and
pages of their own such as the README, have no copy: the site shows the words of such a link only.
"""

from __future__ import annotations

import os.path
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"\[([^\]]+)\]\(([\w./-]+)[^)\s]*\)")


def _outside(page: str, target: str) -> str:
    """Return where in the checkout a link leads; "" for pages, and for what is not there."""
    path = os.path.normpath(os.path.join("docs", os.path.dirname(page), target))
    return path if not path.startswith("docs/") and (ROOT / path).exists() else ""


def _is_copied(path: str) -> bool:
    return (ROOT / path).is_file() and not path.endswith(".md")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files that pages link to."""
    linked = {
        _outside(page.src_uri, target)
        for page in files.documentation_pages()
        for _, target in _LINK.findall(page.content_string)
    }
    for path in sorted(filter(_is_copied, linked)):
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Link to the copies, which are beside the pages and not above them."""
    up = "../" * page.file.src_uri.count("/")

    def relinked(link: re.Match[str]) -> str:
        path = _outside(page.file.src_uri, link[2])
        if not path:
            return link[0]
        return f"[{link[1]}]({up}{path})" if _is_copied(path) else link[1]

    return _LINK.sub(relinked, markdown)
