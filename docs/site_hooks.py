"""For MkDocs: pages of the repository's root, and links that are right both there and on the site.

README is the first page of the site. The other files that pages link to are copied as they are.
"""

from __future__ import annotations

import re
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


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links as they are on the site, where docs/ is the root."""
    if page.file.src_uri in PAGES.values():
        markdown = re.sub(r"\]\(docs/", "](", markdown)
    else:
        markdown = re.sub(r"\]\(\.\./", "](", markdown)
    for source, target in PAGES.items():
        if source != target:
            markdown = markdown.replace(f"]({source}", f"]({target}")
    return markdown
