"""The modules of the package, by name."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "infinipot"


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(
        ".__init__"
    )


MODULES = {module_of(path): path for path in PACKAGE.rglob("*.py")}
