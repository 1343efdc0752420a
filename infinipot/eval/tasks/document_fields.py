"""Fields of a row of documents. Every function raises ValueError that says what is wrong."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Any

from infinipot.eval.short_answers import LETTERS, letters_of


def check_names(fields: dict[str, Any], names: Sequence[str]) -> None:
    """Refuse a misspelled field. Other fields that are not ours say nothing to us."""
    for name in fields:
        if name in names:
            continue
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.8)
        named = near[:1] == ["document"] and "context" in fields  # document_id
        if near and near[0] not in fields and not named:
            raise ValueError(f"unknown field {name!r}; did you mean {near[0]!r}?")


def text_of(fields: dict[str, Any], name: str, default: str | None = None) -> str:
    """The field as a text. Raises ValueError if it is something else, or missing without a
    default."""
    value = fields.get(name, default)
    if value is None and name not in fields:
        raise ValueError(f"the row lacks `{name}`")
    if name in ("id", "doc") and isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise ValueError(f"`{name}` must be a text, not {value!r:.40}")
    if name in ("id", "doc", "task", "question", "metric") and not value.strip():
        raise ValueError(f"`{name}` is empty")
    return value


def texts_of(fields: dict[str, Any], name: str, optional: bool = False) -> tuple[str, ...]:
    """The field as a list of texts with something in them."""
    if optional and name not in fields:
        return ()
    value = fields.get(name)
    if not isinstance(value, list) or not value:
        raise ValueError(f"`{name}` must be a list of at least one text, not {value!r:.40}")
    for text in value:
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"`{name}` must hold texts with something in them, not {text!r:.40}")
    return tuple(value)


def limit_of(fields: dict[str, Any], default: int) -> int:
    value = fields.get("max_tokens", default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"`max_tokens` must be a whole number of at least 1, not {value!r:.40}")
    return value


def mark_of(fields: dict[str, Any], name: str) -> bool | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"`{name}` must be true or false, not {value!r:.40}")
    return value


def options_of(value: Any) -> list[str]:
    """The options of a choice in the order of their letters: {"A": ..., "B": ...}, or a list."""
    if value is None:
        return []
    if isinstance(value, dict):
        letters = letters_of(len(value))
        if sorted(value) != letters:
            raise ValueError(
                f"the letters of `options` must be {', '.join(letters)}, not {', '.join(value)}"
            )
        value = [value[letter] for letter in letters]
    return list(texts_of({"options": value}, "options"))


def check_answers(metric: str, answers: Sequence[str], classes: Sequence[str]) -> None:
    """Refuse answers that the metric could never find right."""
    allowed: Sequence[str] | None = None
    if metric == "choice":
        allowed = letters_of(len(classes) or LETTERS)
    elif metric in ("place", "classification"):
        if not classes:
            raise ValueError(f"metric {metric} needs `choices`, a list of texts")
        allowed = classes
    elif metric in ("retrieval", "retrieval_zh"):
        pattern = {"retrieval": r"Paragraph \d+", "retrieval_zh": r"段落\d+"}[metric]
        allowed = [answer for answer in answers if re.search(pattern, answer)]
    wrong = [answer for answer in answers if allowed is not None and answer not in allowed]
    if wrong:
        names = ", ".join(allowed or ["Paragraph 7"])
        raise ValueError(f"the answer {wrong[0]!r} is not possible with metric {metric}: {names}")


def asked(form: str, question: str, options: Sequence[str]) -> str:
    """The question in the row's form. Options that it does not name are listed below it."""
    if "{question}" not in form:
        raise ValueError(f"`ask` must hold the place of the question, {{question}}: {form!r:.60}")
    if any(option not in question for option in options):
        listed = zip(letters_of(len(options)), options, strict=True)
        question = "\n".join([question, *[f"{letter}. {text}" for letter, text in listed]])
    return form.replace("{question}", question)
