"""The fields of requests. Unknown fields are refused by name."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"
"""A pot's name: letters, digits, _ and -. It cannot lead out of the folder of pots."""
Name = Annotated[str, Field(pattern=NAME, examples=["book"])]


def whole_characters(text: str) -> str:
    """Refuse halves of surrogate pairs, which JSON can contain and UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError as problem:
        raise PydanticCustomError(
            "half_of_a_character",
            "holds half of a character at place {place}, which UTF-8 cannot hold",
            {"place": problem.start},
        ) from None
    return text


def not_a_switch(value: Any) -> Any:
    """Refuse true and false, which Python takes for 1 and 0, and numbers in quotes."""
    if isinstance(value, (bool, str)):
        raise PydanticCustomError("number_type", "must be a number, not true, false or a text")
    return value


Text = Annotated[str, AfterValidator(whole_characters)]
Whole = Annotated[int, BeforeValidator(not_a_switch)]
Number = Annotated[float, BeforeValidator(not_a_switch)]
SALT = (
    "A secret of the client. A conversation with a salt goes on, and is named, "
    "only with the same salt."
)
Salt = Annotated[Text, Field(min_length=1, max_length=256, description=SALT)]
Stop = Annotated[Text, Field(min_length=1, max_length=1000)]
T = TypeVar("T")
Several = Annotated[list[T], Field(fail_fast=True)]
"""A list that is refused at its first wrong item: a list of all errors takes a thousand times the
memory of the items."""
MAX_PARTS = 10_000
"""Messages of a conversation; parts of a message."""


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def one_unknown_field(cls, fields: Any) -> Any:
        """Keep only the first unknown field: one is enough to refuse, and each takes an error."""
        if not isinstance(fields, dict) or len(fields) <= len(cls.model_fields):
            return fields
        unknown = [name for name in fields if name not in cls.model_fields]
        return {name: value for name, value in fields.items() if name not in unknown[1:]}


class TextPart(Strict):
    type: Literal["text"]
    text: Text
    prompt_cache_breakpoint: None = None


class Message(Strict):
    role: Literal["system", "developer", "user", "assistant"]
    content: (
        Text
        | Annotated[list[TextPart], Field(min_length=1, max_length=MAX_PARTS, fail_fast=True)]
        | None
    ) = None
    name: Text | None = Field(None, description="Accepted, not used.")
    refusal: None = None
    audio: None = None
    function_call: None = None
    tool_calls: Annotated[list[Any], Field(max_length=0)] | None = None
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
    n: Literal[1] | None = None
    frequency_penalty: Literal[0] | None = None
    presence_penalty: Literal[0] | None = None
    logit_bias: Annotated[dict[str, float], Field(max_length=0)] | None = None
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
    response_format: dict[Literal["type"], Literal["text"]] | None = None
    tools: Annotated[list[Any], Field(max_length=0)] | None = None
    prompt_cache_key: Text | None = Field(None, description="Accepted, not used.")
    safety_identifier: Text | None = Field(None, description="Accepted, not used.")
    modalities: Annotated[list[Literal["text"]], Field(max_length=1)] | None = None
    audio: None = None
    function_call: None = None
    functions: None = None
    moderation: None = None
    parallel_tool_calls: None = None
    prediction: None = None
    prompt_cache_options: None = None
    prompt_cache_retention: None = None
    reasoning_effort: None = None
    service_tier: None = None
    tool_choice: None = None
    verbosity: None = None
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
    best_of: Literal[1] | None = None
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


class Problem(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorReply(BaseModel):
    """The form of every error."""

    error: Problem


ERRORS: dict[int | str, dict[str, Any]] = {
    400: {
        "model": ErrorReply,
        "description": "The request cannot be used. The message says why.",
    },
    401: {"model": ErrorReply, "description": "The API key is wrong or missing."},
    403: {"model": ErrorReply, "description": "The request comes from a page of another site."},
    404: {"model": ErrorReply, "description": "The model, pot or path does not exist."},
    409: {
        "model": ErrorReply,
        "description": "A conflict: the name is in use, or the file is damaged.",
    },
    408: {"model": ErrorReply, "description": "The body came too slowly."},
    413: {"model": ErrorReply, "description": "The body is too large."},
    421: {
        "model": ErrorReply,
        "description": "The Host header names no host of this server.",
    },
    429: {"model": ErrorReply, "description": "Too many requests are waiting."},
    503: {
        "model": ErrorReply,
        "description": "Try again later: the model is loading, or memory or disk is full.",
    },
}
STREAMS: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}
}
