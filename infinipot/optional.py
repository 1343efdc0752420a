"""Optional packages, imported at first use."""

from __future__ import annotations

import importlib
from typing import Any


def need(module: str, what: str, install: str) -> Any:
    """Import a module. If it is missing, raise ValueError with the command that installs it.

    what: the feature that needs the module ("a figure"). install: the argument of `pip install`.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as problem:
        package = module.split(".")[0]
        if problem.name != package:
            raise
        raise ValueError(
            f"{what}: the package {package!r} is not installed. Install it: pip install {install}"
        ) from None


def extra(names: str) -> str:
    """What `pip install` takes for extras, from an index and in a checkout."""
    return f"'infinipot[{names}]' (in a checkout: pip install '.[{names}]')"


EVAL = extra("eval")
LM = extra("lm")
RAY = extra("ray")
DOCUMENTS = extra("documents")
STRUCTURED = extra("structured")
