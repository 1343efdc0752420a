"""What the documents say is true: every test named exists, every row of the models' table is run, every link leads somewhere, every
page stands on the site, and every message that troubleshooting explains is in the program."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from families import FAMILIES
from modules import MODULES
from multimodal import MULTIMODAL

from infinipot import __version__

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted((*ROOT.glob("docs/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"))
PAGES = sorted((*DOCUMENTS, ROOT / "CHANGELOG.md", ROOT / "SECURITY.md"))


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_test_named_exists(path: Path) -> None:
    for file, _, name in re.findall(
        r"`(?:tests/)?(?:\w+/)?(test_\w+\.py)(::(\w+))?", path.read_text()
    ):
        (found,) = (ROOT / "tests").rglob(file)
        source = found.read_text()
        assert not name or re.search(rf"^def {name}\(", source, re.MULTILINE), (
            f"{path.name} names {file}::{name}, which does not exist"
        )


def test_the_table_of_models_is_the_table_of_tests() -> None:
    text = (ROOT / "docs" / "models.md").read_text()
    rows = re.findall(r"^\| ([^|]+) \| `\w+ForCausalLM`", text, re.MULTILINE)
    assert rows == list(FAMILIES)
    for name, row in re.findall(r"^\| ([^|]+) \| `(\w+)ForCausalLM`", text, re.MULTILINE):
        assert type(FAMILIES[name].build()).__name__ == f"{row}ForCausalLM"
    assert all(name in text for name in MULTIMODAL)


def test_the_papers_of_a_release_agree() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (cited["version"], cited["license"]) == (__version__, "Apache-2.0")
    assert cited["preferred-citation"]["url"] in (ROOT / "README.md").read_text()
    assert f"\n## {__version__}\n" in (ROOT / "CHANGELOG.md").read_text()
    assert (ROOT / "LICENSE").read_text().split()[:4] == ["Apache", "License", "Version", "2.0,"]
    assert 'license = "Apache-2.0"' in (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_file_linked_exists(path: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", path.read_text()):
        assert (path.parent / target).exists(), (
            f"{path.name} links to {target}, which does not exist"
        )


@functools.cache
def anchors(path: Path) -> frozenset[str]:
    """The names of a page's headings, as they stand behind # in a link."""
    text = re.sub(r"^```.*?^```", "", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    words = [re.sub(r"[^\w\s-]", "", title).strip().lower() for title in titles]
    return frozenset(re.sub(r"\s", "-", title) for title in words)


def wrong_links(path: Path, text: str) -> Iterator[str]:
    """Links of a page to files, or headings in pages, that do not exist."""
    text = re.sub(r"^```.*?^```|`[^`\n]*`", "", text, flags=re.MULTILINE | re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?://", link):
            continue
        name, _, anchor = link.partition("#")
        target = path
        if name:
            target = path.parent / name
        if not target.exists() or (anchor and anchor not in anchors(target.resolve())):
            yield link


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_link_leads_somewhere(path: Path) -> None:
    text = path.read_text("utf-8")
    assert [*wrong_links(path, text)] == []
    for wrong in ("docs/nowhere.md", f"{path.name}#no-such-heading", "#no-such-heading"):
        assert [*wrong_links(path, f"{text}\n[here]({wrong})\n")] == [wrong]


def pages_in(nav: list[dict[str, object]]) -> Iterator[str]:
    for entry in nav:
        for target in entry.values():
            if isinstance(target, list):
                yield from pages_in(target)
            else:
                yield str(target)


def test_every_page_stands_on_the_site() -> None:
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))
    listed = [*pages_in(site["nav"])]
    assert sorted(listed) == sorted(path.name.replace("README.md", "index.md") for path in PAGES)


@functools.cache
def program_texts() -> str:
    """All texts of the program, one a line; what an f-string fills in is a line's end, too."""
    found = []
    for path in MODULES.values():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\n".join(found)


def test_every_message_explained_is_in_the_program() -> None:
    text = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
    messages, _, server = text.partition("## Server")
    parts = [
        part.strip()
        for row in re.findall(r"^\| (`.+?`) \|", messages, re.MULTILINE)
        for span in re.findall(r"`([^`]+)`", row)
        for part in span.split("...")
    ]
    parts += re.findall(r"`([a-z]+_[a-z_]+)`", "".join(re.findall(r"^\| \d.*?\|", server, re.M)))
    assert len(parts) > 50
    assert [part for part in parts if part not in program_texts()] == []
