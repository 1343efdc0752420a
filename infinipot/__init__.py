"""InfiniPot: any pre-trained language model reads text without end in a fixed amount of KV memory
(arXiv 2410.01518)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"
__all__ = ["PotConfig", "PotFileError", "Sampling", "Session", "Stats", "generate", "load"]

_HOMES = {
    "PotConfig": "config",
    "PotFileError": "pot_file",
    "Sampling": "sampling",
    "Session": "session",
    "Stats": "engine.stats",
    "generate": "custom_generate",
    "load": "model.load",
}

if TYPE_CHECKING:
    from infinipot.config import PotConfig
    from infinipot.custom_generate import generate
    from infinipot.engine.stats import Stats
    from infinipot.model.load import load
    from infinipot.pot_file import PotFileError
    from infinipot.session import Session


def __getattr__(name: str) -> Any:
    """Import on first use: `import infinipot` itself does no work."""
    if name not in _HOMES:
        raise AttributeError(f"module 'infinipot' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"infinipot.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
