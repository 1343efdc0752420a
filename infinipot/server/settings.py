"""Settings of a server."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from infinipot.config import PotConfig
from infinipot.sampling import Sampling
from infinipot.server.slices import MAX_STALL_S


@dataclass(frozen=True, kw_only=True)
class Settings:
    """config, sampling: the defaults of a request."""

    config: PotConfig = field(default_factory=PotConfig)
    sampling: Sampling = field(default_factory=Sampling)
    max_sessions: int = 8
    """Pots in memory, including those in use."""
    as_many_as_fit: bool = False
    """Whether the free memory decides on max_sessions, once the model is loaded."""
    memory_fraction: float | None = None
    """Part of the free memory that pots may take then; None: by the kind of device."""
    max_stall_s: float = MAX_STALL_S
    """Most seconds of reading between two tokens of an answer."""
    queue: int = 64
    """Prompts that may wait for a place. One request may hold several."""
    most_tokens: int = 1 << 17
    """Longest answer that a request may ask for."""
    pot_dir: Path | None = None
    pot_files: int = 256
    """Conversations on disk. The oldest are deleted."""
    access_log: str = "off"
    """The form of the line for each request: text, json, off."""
    root_path: str = ""
    """The path under which a reverse proxy shows the server, as `root_path.checked` returns it."""
    tool_parser: str | None = None
    """The family whose calls are read; None: by the chat template."""
    tool_template: str | None = None
    """The source of a chat template for requests with tools; None: the model's own, and for the
    embedded model, whose own knows none, `chatml`."""
    shared: bool = False
    """Whether other servers with the same model also use pot_dir."""
