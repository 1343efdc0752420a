"""For MkDocs: pages of the repository's root, and links that are right both there and on the site.

README is the first page of the site. The other files that pages link to are copied as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "SECURITY.md": "SECURITY.md",
}
"""File of the root -> page of the site."""
COPIED = ("LICENSE", "deploy/*", "notebooks/*.ipynb", "benchmarks/results/*.png")
"""Patterns of other files that pages link to."""


def on_files(files: Files, config: Any) -> Files:
    """Add the pages and the files of the root."""
    for source, target in PAGES.items():
        files.append(File.generated(config, target, abs_src_path=str(ROOT / source)))
    for pattern in COPIED:
        for path in sorted(ROOT.glob(pattern)):
            name = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Links as they are on the site, where docs/ is the root and pages have titles."""
    if page.file.src_uri in PAGES.values():
        markdown = re.sub(r"\]\(docs/", "](", markdown)
    else:
        markdown = re.sub(r"\]\(\.\./", "](", markdown)
    for source, target in PAGES.items():
        if source != target:
            markdown = markdown.replace(f"]({source}", f"]({target}")
    # figures of one cell stay in one line
    markdown = re.sub(r"(?<=\d) / (?=\d)", "\u00a0/\u00a0", markdown)
    names = {target: title for title, target in titles(config.nav)}
    return re.sub(
        r"\[(?:docs/)?(\w+\.md)\]\(", lambda link: f"[{names.get(link[1], link[1])}](", markdown
    )


def titles(nav: Any) -> Iterator[tuple[str, str]]:
    """Title and file of each page."""
    for entry in nav:
        for title, target in entry.items():
            if isinstance(target, list):
                yield from titles(target)
            else:
                yield title, target
