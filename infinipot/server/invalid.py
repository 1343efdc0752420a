"""What is wrong with a request's fields, in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from infinipot.server.errors import APIError

KINDS = {
    "extra_forbidden": "is not a field of this request",
    "missing": "is missing",
    "none_required": "is not supported: leave it out, or give null",
}
"""By pydantic's type of error."""
FIELDS = {
    "content": 'must be a text, or a list of parts like {"type": "text", "text": "..."}; '
    "images, sound and files cannot be read",
    "stop": "must be a text, or a list of up to 16 texts, each of 1 to 1,000 characters",
    "prompt": "must be a text, token ids, a list of texts, or a list of lists of token ids",
    "response_format": 'must be {"type": "text"}, {"type": "json_object"}, or '
    '{"type": "json_schema", "json_schema": {"name": "...", "schema": {...}}}',
    "tool_choice": 'must be "none", "auto", "required", or '
    '{"type": "function", "function": {"name": "..."}}',
    "logit_bias": "must be an object with token ids as names and numbers from -100 to 100",
    "guided_json": "must be a JSON schema, as an object or as text",
    "input": "must be a text, or a list of items: messages with role and content (texts only), "
    "function_call, function_call_output, reasoning",
    "metadata": "must be an object with texts as values",
}
"""Fields that may have several forms. pydantic would tell of one of them."""
NOT_JSON = "the body must be a JSON object, sent with the header Content-Type: application/json"


def sentence(errors: Sequence[Any]) -> APIError:
    """The error for what pydantic found, first of all for halves of characters."""
    error = next((one for one in errors if one["type"] == "half_of_a_character"), errors[0])
    kind = error["type"]
    if kind == "json_invalid":
        return APIError(400, f"the body is not JSON, at character {error['loc'][-1]}", code=kind)
    place, text = told(error)
    if not place and not isinstance(error.get("input"), dict):
        return APIError(400, NOT_JSON, code=kind)
    others = len({told(one)[0] for one in errors} - {place})
    more = f" (and {others} more)" if others else ""
    message = f"{place}: {text}{more}" if place else f"the body cannot be used: {text}"
    return APIError(400, printable(message), code=kind, param=printable(place) or None)


def told(error: Any) -> tuple[str, str]:
    """The field of an error, with dots, and the sentence about it."""
    kind = error["type"]
    names = [part for part in error["loc"] if part not in ("body", "query", "path")]
    text = KINDS.get(kind, error["msg"])
    for number, name in enumerate(names):
        if name not in FIELDS:
            continue
        last = number == len(names) - 1
        if kind != "half_of_a_character" and (not last or (kind != "missing" and name != "prompt")):
            text = FIELDS[name]
            names = names[: number + 1]
        break
    # a part with [ names one of several alternatives
    parts = [str(name) for name in names if "[" not in str(name)]
    return ".".join(parts)[:200], text


def printable(text: str) -> str:
    """Replace what UTF-8 cannot hold: a request may contain it."""
    return text.encode("utf-8", "replace").decode()
