"""The fields of requests."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from infinipot.server.fields import (
    MAX_PARTS,
    Name,
    Number,
    Salt,
    Several,
    Stop,
    Strict,
    Text,
    Whole,
)
from infinipot.server.tool_fields import ResponseFormat, Structure, Tool, ToolCall, ToolChoice

Bias = Annotated[Number, Field(ge=-100, le=100)]
MAX_CALLS = 256
MAX_TOOLS = 512


class TextPart(Strict):
    type: Literal["text"]
    text: Text
    prompt_cache_breakpoint: None = None


class Message(Strict):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: (
        Text
        | Annotated[list[TextPart], Field(min_length=1, max_length=MAX_PARTS, fail_fast=True)]
        | None
    ) = None
    name: Text | None = Field(None, description="Accepted, not used.")
    refusal: None = None
    audio: None = None
    function_call: None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=MAX_CALLS, fail_fast=True)] | None = None
    tool_call_id: Text | None = Field(None, description="Whose result a message of a tool is.")
    parsed: Any = Field(None, description="Accepted, not used.")
    reasoning_content: Text | None = Field(None, description="Accepted, not used.")
    reasoning: Text | None = Field(None, description="Accepted, not used.")
    annotations: Annotated[list[Any], Field(max_length=1000)] | None = Field(
        None, description="Accepted, not used."
    )
    """Clients send an answer back with all the fields that OpenAI's answers have."""

    @property
    def texts(self) -> list[str]:
        """The parts of the content."""
        if isinstance(self.content, str):
            return [self.content]
        return [part.text for part in self.content or ()]


class StreamOptions(Strict):
    include_usage: bool | None = None
    include_obfuscation: bool | None = Field(None, description="Accepted, not used.")


class PotOptions(Strict):
    """The pot of this request, through `extra_body` of OpenAI's clients. Defaults: the server's."""

    pot_size: int | None = Field(
        None, ge=2, le=2**31, description="Entries of the pot; not above the server's."
    )
    distill_to: int | None = Field(
        None, ge=1, le=2**31, description="Entries that survive a distillation."
    )
    policy: Text | None = Field(
        None, description="How survivors are chosen.", examples=["infinipot"]
    )
    novelty: float | None = Field(
        None, ge=0, le=1, description="Share of the survivors chosen by novelty."
    )
    catalyst: Text | None = Field(
        None, max_length=10_000, description="`question`, `general`, ... or a prompt of your own."
    )
    sinks: int | None = Field(None, ge=0, le=2**31)
    recent: int | None = Field(None, ge=0, le=2**31)
    pool: int | None = Field(None, ge=0, le=2**31)


class Options(PotOptions):
    """Fields of both chat and completions."""

    model: Text = Field(examples=["smollm2"])
    temperature: Number | None = Field(None, ge=0, le=100)
    top_p: Number | None = Field(None, ge=0, le=1)
    top_k: Whole | None = Field(None, ge=0, le=2**31)
    min_p: Number | None = Field(None, ge=0, le=1)
    seed: Whole | None = Field(None, ge=-(2**63), le=2**63 - 1)
    stop: Stop | Annotated[list[Stop], Field(max_length=16, fail_fast=True)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Whole | None = Field(None, ge=1, le=128, description="Answers to one prompt.")
    frequency_penalty: Number | None = Field(None, ge=-2, le=2)
    presence_penalty: Number | None = Field(None, ge=-2, le=2)
    repetition_penalty: Number | None = Field(None, gt=0, le=100)
    logit_bias: Annotated[dict[str, Bias], Field(max_length=1024)] | None = Field(
        None, description="What is added to the logits of tokens, by their ids."
    )
    stop_token_ids: Annotated[list[Whole], Field(max_length=64)] | None = Field(
        None, description="Tokens that end the answer."
    )
    min_tokens: Whole | None = Field(None, ge=0, le=2**31)
    ignore_eos: bool | None = Field(
        None, description="The model's own end tokens do not end the answer."
    )
    structured_outputs: Structure | None = None
    guided_json: dict[str, Any] | Text | None = None
    guided_regex: Text | None = None
    guided_choice: Annotated[list[Text], Field(min_length=1, max_length=1000)] | None = None
    guided_grammar: Text | None = None
    user: Text | None = Field(None, description="Accepted, not used.")
    metadata: dict[str, str] | None = Field(None, description="Accepted, not used.")
    store: bool | None = Field(None, description="Accepted, not used.")
    pot: Name | None = Field(
        None, description="Answer from a copy of this named pot. The pot stays as it was."
    )
    session: Name | None = Field(
        None,
        description="A label of the conversation. It goes on only in pots with the same label. "
        "POST /v1/pots names it by this label.",
    )
    cache_salt: Salt | None = None


class ChatRequest(Options):
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_PARTS, fail_fast=True)]
    max_tokens: Whole | None = Field(None, ge=1, le=2**31)
    max_completion_tokens: Whole | None = Field(None, ge=1, le=2**31)
    logprobs: bool | None = None
    top_logprobs: Whole | None = Field(None, ge=0, le=20)
    response_format: ResponseFormat | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = Field(None, description="false: one call an answer.")
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="Options of the model's chat template, such as enable_thinking."
    )
    add_generation_prompt: bool | None = Field(
        None, description="false: the template does not begin the answer."
    )
    continue_final_message: bool | None = Field(
        None, description="The last message is the assistant's, and the answer goes on with it."
    )
    include_reasoning: bool | None = Field(
        None, description="false: the answer comes without its reasoning."
    )
    reasoning_effort: Text | None = Field(
        None, description="An option of the model's chat template, if that knows it."
    )
    service_tier: Text | None = Field(None, description="Accepted, not used.")
    verbosity: Text | None = Field(None, description="Accepted, not used.")
    prediction: dict[str, Any] | None = Field(None, description="Accepted, not used.")
    prompt_cache_options: dict[str, Any] | None = Field(None, description="Accepted, not used.")
    prompt_cache_retention: Text | None = Field(None, description="Accepted, not used.")
    prompt_cache_key: Text | None = Field(None, description="Accepted, not used.")
    safety_identifier: Text | None = Field(None, description="Accepted, not used.")
    modalities: Annotated[list[Literal["text"]], Field(max_length=1)] | None = None
    audio: None = None
    function_call: None = None
    functions: None = None
    moderation: None = None
    web_search_options: None = None


class CompletionRequest(Options):
    prompt: Text | Several[Text] | Several[int] | Several[Several[int]] | None
    max_tokens: Whole | None = Field(
        None, ge=0, le=2**31, description="0 only with echo: the prompt's own log probabilities."
    )
    logprobs: Whole | None = Field(None, ge=0, le=20)
    special_tokens: bool | None = Field(
        None,
        description="Special tokens count where the prompt spells them; otherwise they are text.",
    )
    echo: bool | None = Field(
        None,
        description="The answer begins with the prompt. "
        "With logprobs, it includes those of the prompt's tokens.",
    )
    best_of: Whole | None = Field(None, ge=1, le=128, description="The same as n.")
    suffix: None = None


class TokenizeRequest(Strict):
    model: Text | None = None
    prompt: Text
    offsets: bool = Field(False, description="Also return where each token begins, in characters.")


class FillOptions(PotOptions):
    """How a text is read into a named pot."""

    question: Text | None = Field(
        None,
        min_length=1,
        max_length=100_000,
        description="The later question, if it is known: the catalyst.",
    )
    system: Text | None = Field(
        None,
        min_length=1,
        max_length=1_000_000,
        description="A system prompt; it is never distilled.",
    )
    expendable: bool = Field(
        False,
        description="The pot may be removed unsaved when memory is needed, like a conversation.",
    )
    replace: bool = Field(False, description="Replace a pot of the same name.")


class StreamedFill(FillOptions):
    """The same fields in a URL, with shorter limits."""

    question: Text | None = Field(None, min_length=1, max_length=1000)
    system: Text | None = Field(None, min_length=1, max_length=1000)
    catalyst: Text | None = Field(None, max_length=1000)
    policy: Text | None = Field(None, max_length=100)


class NewPot(FillOptions):
    """A text for a named pot, or the `session` of a conversation that gets a name."""

    name: Name
    text: Text | None = None
    session: Name | None = None
    cache_salt: Salt | None = None
