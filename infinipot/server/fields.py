"""What fields of requests have in common. Unknown fields are refused by name."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

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
        names = {field.alias or name for name, field in cls.model_fields.items()}
        unknown = [name for name in fields if name not in names]
        return {name: value for name, value in fields.items() if name not in unknown[1:]}
