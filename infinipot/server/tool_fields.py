"""Fields of requests that speak of functions and of the form of answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from infinipot.server.fields import Strict, Text

FunctionName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$", examples=["weather"])]
Schema = dict[str, Any]


class FunctionFields(Strict):
    name: FunctionName
    description: Text | None = None
    parameters: Schema | None = Field(None, description="A JSON schema of an object.")
    strict: bool | None = Field(None, description="Calls have just this form.")


class Tool(Strict):
    type: Literal["function"]
    function: FunctionFields


class ChosenFunction(Strict):
    name: FunctionName


class NamedChoice(Strict):
    type: Literal["function"]
    function: ChosenFunction


ToolChoice = Literal["none", "auto", "required"] | NamedChoice


class CalledFunction(Strict):
    name: Text
    arguments: Text
    parsed_arguments: Any = Field(None, description="Accepted, not used.")


class ToolCall(Strict):
    """A call in an answer that a client sends back."""

    id: Annotated[Text, Field(min_length=1, max_length=256)]
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = Field(None, description="Accepted, not used.")


class TextFormat(Strict):
    type: Literal["text"]


class ObjectFormat(Strict):
    type: Literal["json_object"]


class NamedSchema(Strict):
    name: Text | None = None
    description: Text | None = None
    schema_: Schema | None = Field(None, alias="schema")
    strict: bool | None = None


class SchemaFormat(Strict):
    type: Literal["json_schema"]
    json_schema: NamedSchema


ResponseFormat = TextFormat | ObjectFormat | SchemaFormat


class Structure(Strict):
    """vLLM's form of the same: one of these fields."""

    json_: Schema | Text | None = Field(None, alias="json", description="A JSON schema.")
    regex: Text | None = None
    choice: Annotated[list[Text], Field(min_length=1, max_length=1000)] | None = None
    grammar: Text | None = Field(None, description="In Lark's form or in GBNF.")
    json_object: bool | None = None
