"""What requests look like. Anything that is not named here is refused, with its name."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"
"""A pot's name: letters, digits, _ and -; it can never leave the folder it is saved in."""
Name = Annotated[str, Field(pattern=NAME, examples=["book"])]


def whole_characters(text: str) -> str:
    """Refuse halves of characters, which JSON can spell and no text can hold."""
    text.encode()
    return text


Text = Annotated[str, AfterValidator(whole_characters)]
SALT = "A secret of the client's: a conversation with one only goes on, and is only named, with it."
Salt = Annotated[Text, Field(min_length=1, max_length=256, description=SALT)]
Stop = Annotated[Text, Field(min_length=1, max_length=1000)]
T = TypeVar("T")
Several = Annotated[list[T], Field(fail_fast=True)]
"""A list that is refused for the first of its items that is wrong: to name them all takes a thousand times their memory."""
MOST_PARTS = 10_000
"""Messages of a conversation; parts of a message."""


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def one_stranger(cls, given: Any) -> Any:
        """Of all fields that are not known only the first: one is enough to refuse, and each would be a problem of its own."""
        if not isinstance(given, dict) or len(given) <= len(cls.model_fields):
            return given
        strangers = [name for name in given if name not in cls.model_fields]
        return {name: value for name, value in given.items() if name not in strangers[1:]}


class TextPart(Strict):
    type: Literal["text"]
    text: Text


class Message(Strict):
    role: Literal["system", "developer", "user", "assistant"]
    content: Text | Annotated[list[TextPart], Field(min_length=1, max_length=MOST_PARTS, fail_fast=True)]
    name: Text | None = Field(None, description="Accepted, not used.")
    refusal: None = None
    tool_calls: Annotated[list[Any], Field(max_length=0)] | None = None
    """Clients send answers back with these two fields empty."""


class StreamOptions(Strict):
    include_usage: bool = False
    include_obfuscation: bool = Field(False, description="Accepted, not used.")


class PotOptions(Strict):
    """The pot, for this request: `extra_body` of OpenAI's clients. What is left out is as the server was started with."""

    pot_size: int | None = Field(None, ge=2, le=2**31, description="Entries of the pot; not above the server's.")
    distill_to: int | None = Field(None, ge=1, le=2**31, description="Entries that survive a distillation.")
    policy: Text | None = Field(None, description="How survivors are chosen.", examples=["infinipot"])
    novelty: float | None = Field(None, ge=0, le=1, description="Share of the survivors chosen by novelty.")
    catalyst: Text | None = Field(None, max_length=10_000, description="`question`, `general`, ... or a prompt of your own.")
    sinks: int | None = Field(None, ge=0, le=2**31)
    recent: int | None = Field(None, ge=0, le=2**31)
    pool: int | None = Field(None, ge=0, le=2**31)


class Options(PotOptions):
    """What chat and completions share."""

    model: Text = Field(examples=["smollm2"])
    temperature: float | None = Field(None, ge=0, le=100)
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=0, le=2**31)
    min_p: float | None = Field(None, ge=0, le=1)
    seed: int | None = Field(None, ge=-(2**63), le=2**63 - 1)
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
    pot: Name | None = Field(None, description="Answer from a fork of this named pot, which stays as it was.")
    session: Name | None = Field(
        None, description="A label of the conversation: it only goes on in pots with the same label, and can be named by it (POST /v1/pots)."
    )
    cache_salt: Salt | None = None


class ChatRequest(Options):
    messages: Annotated[list[Message], Field(min_length=1, max_length=MOST_PARTS, fail_fast=True)]
    max_tokens: int | None = Field(None, ge=1, le=2**31)
    max_completion_tokens: int | None = Field(None, ge=1, le=2**31)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    response_format: dict[Literal["type"], Literal["text"]] | None = None
    tools: Annotated[list[Any], Field(max_length=0)] | None = None


class CompletionRequest(Options):
    prompt: Text | Several[Text] | Several[int] | Several[Several[int]]
    max_tokens: int | None = Field(None, ge=0, le=2**31, description="0 only with echo: the prompt's own log probabilities.")
    logprobs: int | None = Field(None, ge=0, le=20)
    echo: bool | None = Field(None, description="The answer begins with the prompt; with logprobs, the prompt's tokens have theirs.")
    best_of: Literal[1] | None = None
    suffix: None = None


class TokenizeRequest(Strict):
    model: Text | None = None
    prompt: Text
    offsets: bool = Field(False, description="Also say where each token begins, in characters.")


class FillOptions(PotOptions):
    """How a text is read into a named pot."""

    question: Text | None = Field(None, min_length=1, max_length=100_000, description="What will be asked, if it is known: the catalyst.")
    system: Text | None = Field(None, min_length=1, max_length=1_000_000, description="A system prompt; it is never distilled.")
    expendable: bool = Field(False, description="When places are needed it may go, like a conversation, without being saved.")
    replace: bool = Field(False, description="Take the place of a pot of the same name.")


class StreamedFill(FillOptions):
    """The same in a URL, where there is less room."""

    question: Text | None = Field(None, min_length=1, max_length=1000)
    system: Text | None = Field(None, min_length=1, max_length=1000)
    catalyst: Text | None = Field(None, max_length=1000)
    policy: Text | None = Field(None, max_length=100)


class NewPot(FillOptions):
    """A text to be read into a named pot, or a conversation (its `session`) to be named."""

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
    """What every refusal looks like."""

    error: Problem


REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorReply, "description": "What was given cannot be used; the message says why."},
    401: {"model": ErrorReply, "description": "The API key is wrong or missing."},
    403: {"model": ErrorReply, "description": "The request comes from a page of another site."},
    404: {"model": ErrorReply, "description": "There is no such thing."},
    409: {"model": ErrorReply, "description": "It cannot be done as things are: a name is in use, a file is damaged."},
    408: {"model": ErrorReply, "description": "The body came too slowly."},
    413: {"model": ErrorReply, "description": "The body is too large."},
    421: {"model": ErrorReply, "description": "The server is asked under a name that it does not know."},
    429: {"model": ErrorReply, "description": "Too many requests are waiting."},
    503: {"model": ErrorReply, "description": "Not now: the model is loading, memory or disk are full."},
}
STREAMS: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}}
