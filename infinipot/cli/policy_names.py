"""Policies as they are named on the command line."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from infinipot.policies import Policy


def policy_named(text: str) -> Policy:
    """A policy by its name, or from a module, also one in the current folder."""
    from infinipot.policies import policy_of

    find_modules(text)
    return policy_of(text)


def find_modules(policies: str) -> None:
    """Let modules in the current folder be found, behind all others, if policies may come from one."""
    if ":" in policies and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
