"""The head of a conversation with tools: the chat template writes their descriptions into it."""

from __future__ import annotations

from dataclasses import replace

from transformers import PreTrainedTokenizerBase

from infinipot.text.rendering import Guard, TemplateOptions, render

NO_TOOLS = (
    "this model's chat template knows no tools, so the model cannot be told of them: leave tools "
    "out, use a model that is made for them, or serve this one with --tool-template"
)
TAIL = 64
"""Characters at the end of a head that decide how the text behind it is split into tokens."""


def tool_head(
    tokenizer: PreTrainedTokenizerBase, system: str | None, options: TemplateOptions, user: str
) -> tuple[str, list[int]]:
    """The end of the head as text, and the whole head as ids. Everything before the first user's
    text belongs to it, so it stays pinned. user: stands for that text.

    Raises ValueError if the template has no place for tools, or refuses these.
    """
    guard = Guard(tokenizer)
    hidden = replace(options, tools=tuple(guard.hide(options.tools)))
    messages = [{"role": "user", "content": user}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": guard.hide(system)})
    try:
        text = render(tokenizer, messages, hidden, with_tools=True)
    except ValueError as problem:
        raise ValueError(f"the model's chat template refuses these tools: {problem}") from problem
    head, found, _ = text.partition(user)
    shown = guard.shown(head)
    if not found or any(name not in shown for name in options.names):
        raise ValueError(NO_TOOLS)
    return shown[-TAIL:], guard.ids(head.rstrip(" "))
