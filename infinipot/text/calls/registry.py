"""All families whose calls can be read. A chat template shows by its own text which it is."""

from __future__ import annotations

from infinipot.checks import known
from infinipot.text.calls.base import Family
from infinipot.text.calls.gemma import Gemma
from infinipot.text.calls.gpt_oss import GptOss
from infinipot.text.calls.hermes import Hermes
from infinipot.text.calls.llama3 import Llama3
from infinipot.text.calls.mistral import Mistral
from infinipot.text.calls.qwen_xml import QwenXml

FAMILIES: dict[str, Family] = {
    "gpt_oss": GptOss(),
    "mistral": Mistral(),
    "gemma": Gemma("gemma", "<start_function_call>", "<end_function_call>", "<escape>"),
    "gemma4": Gemma("gemma4", "<|tool_call>", "<tool_call|>", '<|"|>'),
    "qwen_xml": QwenXml(),
    "hermes": Hermes(),
    "llama3": Llama3(),
}
"""By the names that --tool-parser takes, in the order in which templates are compared."""


def family_of(template: str, name: str | None = None) -> Family | None:
    """The family of a chat template; None if it is of no known one. name: choose this one. Raises
    ValueError for an unknown name."""
    if name is not None:
        known("tool-parser", name, FAMILIES)
        found: Family | None = FAMILIES[name]
    else:
        found = next((one for one in FAMILIES.values() if one.writes(template)), None)
    if isinstance(found, Mistral):
        return Mistral(named="[ARGS]" in template)
    return found
