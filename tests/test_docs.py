"""What the documents say of tests is true: every test named in them exists, and every row of the models' table is run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from families import FAMILIES
from multimodal import MULTIMODAL

from infinipot import __version__

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted((*ROOT.glob("docs/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"))


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
