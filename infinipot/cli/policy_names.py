"""How the command line names policies."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from infinipot.policies import Policy


def parse_policy(text: str) -> Policy:
    """A policy by its name, or by its module, which may be in the current folder."""
    from infinipot.policies import policy_of

    search_current_folder(text)
    return policy_of(text)


def search_current_folder(policies: str) -> None:
    """Find modules in the current folder, after all others, if policies may come from one."""
    if ":" in policies and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
