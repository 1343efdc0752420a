"""What the documents say of tests is true: every test named in them exists, and every row of the models' table is run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from families import FAMILIES
from test_probe import MULTIMODAL

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted((*ROOT.glob("docs/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"))


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_test_named_exists(path: Path) -> None:
    for file, _, name in re.findall(r"`(?:tests/)?(test_\w+\.py)(::(\w+))?", path.read_text()):
        source = (ROOT / "tests" / file).read_text()
        assert not name or re.search(rf"^def {name}\(", source, re.MULTILINE), f"{path.name} names {file}::{name}, which does not exist"


def test_the_table_of_models_is_the_table_of_tests() -> None:
    text = (ROOT / "docs" / "models.md").read_text()
    rows = re.findall(r"^\| ([^|]+) \| `\w+ForCausalLM`", text, re.MULTILINE)
    assert rows == list(FAMILIES)
    for name, row in re.findall(r"^\| ([^|]+) \| `(\w+)ForCausalLM`", text, re.MULTILINE):
        assert type(FAMILIES[name].build()).__name__ == f"{row}ForCausalLM"
    assert all(name in text for name in MULTIMODAL)
