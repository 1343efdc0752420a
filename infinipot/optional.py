"""Packages that only the evaluation needs, asked for when they are used."""

from __future__ import annotations

import importlib
from typing import Any


def need(module: str, what: str, install: str) -> Any:
    """The module; where it is missing, ValueError with the command that installs it.

    what: what needs it, as a subject ("plots", "ROUGE"). install: what follows `pip install`.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as problem:
        if problem.name != module.split(".")[0]:
            raise
        raise ValueError(
            f"{what} cannot be had without the package {module.split('.')[0]!r}: pip install {install}"
        ) from None


EVAL = "'infinipot[eval]'"
LM = "'infinipot[lm]'"
RAY = "'infinipot[ray]'"
