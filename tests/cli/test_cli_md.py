"""The generated documents say what the code says: docs/cli.md the help, docs/options.md the dataclasses."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("script", ["make_cli.py", "make_options.py"])
def test_generated_document_is_up_to_date(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [script, "--check"])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(ROOT / "docs" / script), run_name="__main__")
    assert end.value.code == 0, capsys.readouterr().err
