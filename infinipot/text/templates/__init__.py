"""Chat templates for requests with tools, for models whose own template knows none."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.jinja")))


def source_of(name: str) -> str:
    """The source of a template: one of NAMES, or a file. Raises ValueError if there is none."""
    path = Path(name)
    if name in NAMES:
        path = FOLDER / f"{name}.jinja"
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise ValueError(
            f"tool-template {name!r} is neither a file that can be read ({problem}) "
            f"nor one of {', '.join(NAMES)}"
        ) from None
