"""The fields of POST /v1/responses."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field
from pydantic import Tag as Named

from infinipot.server.fields import MAX_PARTS, Strict, Text, Whole
from infinipot.server.schema import MAX_TOOLS, Options
from infinipot.server.tool_fields import FunctionName, ObjectFormat, Schema, TextFormat


class ContentText(Strict):
    type: Literal["input_text", "output_text", "text"]
    text: Text
    annotations: Annotated[list[Any], Field(max_length=1000)] | None = None
    logprobs: Annotated[list[Any], Field(max_length=100_000)] | None = None


Content = Text | Annotated[list[ContentText], Field(max_length=MAX_PARTS, fail_fast=True)]


class MessageItem(Strict):
    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Content
    id: Text | None = Field(None, description="Accepted, not used.")
    status: Text | None = Field(None, description="Accepted, not used.")
    phase: Text | None = Field(None, description="Accepted, not used.")


class CallItem(Strict):
    type: Literal["function_call"]
    call_id: Annotated[Text, Field(min_length=1, max_length=256)]
    name: Text
    arguments: Text
    id: Text | None = Field(None, description="Accepted, not used.")
    status: Text | None = Field(None, description="Accepted, not used.")


class ResultItem(Strict):
    type: Literal["function_call_output"]
    call_id: Annotated[Text, Field(min_length=1, max_length=256)]
    output: Content
    id: Text | None = Field(None, description="Accepted, not used.")
    status: Text | None = Field(None, description="Accepted, not used.")


class ReasoningItem(Strict):
    """Reasoning of an earlier answer. It is left out."""

    type: Literal["reasoning"]
    id: Text | None = None
    summary: Annotated[list[Any], Field(max_length=1000)] | None = None
    content: Annotated[list[Any], Field(max_length=1000)] | None = None
    encrypted_content: Text | None = None
    status: Text | None = None


def kind_of(item: Any) -> str:
    """A message may leave its type out."""
    kind = item.get("type") if isinstance(item, dict) else getattr(item, "type", None)
    return kind if isinstance(kind, str) else "message"


Item = Annotated[
    Annotated[MessageItem, Named("message")]
    | Annotated[CallItem, Named("function_call")]
    | Annotated[ResultItem, Named("function_call_output")]
    | Annotated[ReasoningItem, Named("reasoning")],
    Discriminator(kind_of),
]


class FunctionTool(Strict):
    type: Literal["function"]
    name: FunctionName
    description: Text | None = None
    parameters: Schema | None = None
    strict: bool | None = None


class ChosenTool(Strict):
    type: Literal["function"]
    name: FunctionName


class SchemaText(Strict):
    type: Literal["json_schema"]
    name: Text | None = None
    description: Text | None = None
    schema_: Schema | None = Field(None, alias="schema")
    strict: bool | None = None


class TextConfig(Strict):
    format: TextFormat | ObjectFormat | SchemaText | None = None
    verbosity: Text | None = Field(None, description="Accepted, not used.")


class Reasoning(Strict):
    effort: Text | None = None
    summary: Text | None = Field(None, description="Accepted, not used.")
    generate_summary: Text | None = Field(None, description="Accepted, not used.")


class ResponseRequest(Options):
    input: Text | Annotated[list[Item], Field(min_length=1, max_length=MAX_PARTS, fail_fast=True)]
    instructions: Text | None = Field(None, description="The system prompt.")
    previous_response_id: Annotated[Text, Field(max_length=100)] | None = Field(
        None, description="The conversation goes on behind this response."
    )
    n: Literal[1] | None = None
    max_output_tokens: Whole | None = Field(None, ge=1, le=2**31)
    tools: Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChosenTool | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    include_reasoning: bool | None = None
    include: Annotated[list[Literal["reasoning.encrypted_content"]], Field(max_length=8)] | None = (
        Field(None, description="Accepted, not used.")
    )
    truncation: Literal["auto", "disabled"] | None = Field(
        None, description="Accepted, not used: a pot takes texts of any length."
    )
    background: Literal[False] | None = None
    conversation: None = None
    prompt: None = None
    moderation: None = None
    max_tool_calls: None = None
    context_management: None = None
    top_logprobs: Literal[0] | None = None
    service_tier: Text | None = Field(None, description="Accepted, not used.")
    prompt_cache_key: Text | None = Field(None, description="Accepted, not used.")
    prompt_cache_options: dict[str, Any] | None = Field(None, description="Accepted, not used.")
    prompt_cache_retention: Text | None = Field(None, description="Accepted, not used.")
    safety_identifier: Text | None = Field(None, description="Accepted, not used.")
