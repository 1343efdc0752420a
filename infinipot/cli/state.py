"""What the chat keeps between runs, in the user's state folder: what was typed, and the newest
conversation."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path

from infinipot.cli.console import BadUse

HISTORY = "history"
POT = "chat.pot"
TALK = "chat.json"


def state_folder() -> Path:
    """`$XDG_STATE_HOME/infinipot`, by default `~/.local/state/infinipot`."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData/Local") / "infinipot"
    chosen = os.environ.get("XDG_STATE_HOME", "")
    if os.path.isabs(chosen):  # the standard ignores others
        return Path(chosen) / "infinipot"
    return Path.home() / ".local" / "state" / "infinipot"


def make_folder() -> Path:
    """The folder, which only this user may look into. Raises OSError."""
    folder = state_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


@dataclasses.dataclass(frozen=True)
class Talk:
    """A conversation as text, beside its pot."""

    model: str
    turns: tuple[tuple[str, str], ...] = ()
    """Messages and answers."""


def write_talk(talk: Talk) -> None:
    """Raises OSError."""
    path = make_folder() / TALK
    part = path.with_suffix(".part")
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(handle, "w", encoding="utf-8", errors="replace") as file:
        json.dump(dataclasses.asdict(talk), file, ensure_ascii=False)
    os.replace(part, path)


def kept_talk() -> Talk:
    """The newest conversation. Raises BadUse if none is kept, or if its file is damaged."""
    path = state_folder() / TALK
    if not path.exists() or not kept_pot().exists():
        raise BadUse(
            f"there is no conversation to go on with in {state_folder()}: "
            "leave out -c, and the next time it goes on from there"
        )
    try:
        content = json.loads(path.read_text("utf-8"))
        turns = tuple((str(message), str(answer)) for message, answer in content["turns"])
        return Talk(str(content["model"]), turns)
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise BadUse(
            f"{path} is damaged ({problem}): go on with infinipot chat --pot {kept_pot()}"
        ) from None


def kept_pot() -> Path:
    return state_folder() / POT
