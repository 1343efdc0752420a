"""JSON on one line, for every reader of lines."""

from __future__ import annotations

import json
import re
from typing import Any

BREAKS = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""What JSON may hold as it is, but some readers take for the end of a line, and halves of
characters, which UTF-8 cannot hold."""


def json_text(content: Any, *, nan: bool = True) -> str:
    """The content as JSON, without any end of a line in it. nan: whether NaN and infinity may stand
    in it, which JSON does not know; else they raise ValueError."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=nan)
    return BREAKS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
