"""The messages of a request as the turns of a conversation: user, assistant, user, ..."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from infinipot.server.errors import APIError
from infinipot.server.schema import Message
from infinipot.text.exchange import result_message
from infinipot.text.reply import Call


@dataclass
class Turn:
    """What one side says, until the other one speaks."""

    assistant: bool
    texts: list[str] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    """Functions that the assistant calls."""
    block: list[dict[str, Any]] = field(default_factory=list)
    """The functions' results, and what the user says after them; empty if there are none."""

    @property
    def text(self) -> str:
        return "\n\n".join(self.texts)


def turns_of(messages: Sequence[Message], continues: bool = False) -> tuple[str | None, list[Turn]]:
    """The system prompt, and the turns. Consecutive messages of one side become one turn.

    continues: the last message is the assistant's, and goes on. Raises APIError.
    """
    system: list[str] = []
    turns: list[Turn] = []
    for number, message in enumerate(messages):
        add(system, turns, number, message)
    if not turns:
        raise error("messages holds no message of the user: ask something")
    if continues != turns[-1].assistant:
        raise error(last_wrong(continues))
    if continues and turns[-1].calls:
        raise error("an answer that calls functions cannot go on: give the functions' results")
    if not continues and not any(turns[-1].texts) and not turns[-1].block:
        raise error("the last message is empty: ask something")
    return "\n\n".join(system) if system else None, turns


def error(message: str) -> APIError:
    return APIError(400, message, param="messages")


def last_wrong(continues: bool) -> str:
    if continues:
        return "continue_final_message needs an assistant's message at the end"
    return (
        "the last message must be the user's, or a function's result; to continue an answer give "
        "continue_final_message, to continue a text use /v1/completions"
    )


def add(system: list[str], turns: list[Turn], number: int, message: Message) -> None:
    """Add one message."""
    where = f"messages[{number}]"
    if message.content is None and message.role != "assistant":
        raise error(f"{where}: content is missing")
    if message.role in ("system", "developer"):
        if turns:
            raise error(f"{where}: a system message must come before all others")
        system += message.texts
    elif message.role == "tool":
        add_result(turns, where, message)
    elif message.role == "assistant":
        add_answer(turns, where, message)
    else:
        if not turns or turns[-1].assistant:
            turns.append(Turn(assistant=False))
        turn = turns[-1]
        if turn.block:
            text = "\n\n".join(message.texts)
            turn.block.append({"role": "user", "content": text})
        else:
            turn.texts += message.texts


def add_answer(turns: list[Turn], where: str, message: Message) -> None:
    if not turns:
        raise error(f"{where}: the first message after the system prompt must be the user's")
    if not turns[-1].assistant:
        turns.append(Turn(assistant=True))
    turns[-1].texts += message.texts
    for call in message.tool_calls or ():
        turns[-1].calls.append(Call(call.id, call.function.name, call.function.arguments))


def add_result(turns: list[Turn], where: str, message: Message) -> None:
    if message.tool_call_id is None:
        raise error(f"{where}: tool_call_id is missing: it says which call this is the result of")
    asked = next((turn for turn in reversed(turns) if turn.assistant), None)
    calls = {call.id: call for call in (asked.calls if asked else ())}
    if message.tool_call_id not in calls:
        named = ", ".join(repr(one) for one in calls) or "none"
        raise error(
            f"{where}: no call of the assistant's last message has the id "
            f"{message.tool_call_id!r}: {named}"
        )
    if turns[-1].assistant:
        turns.append(Turn(assistant=False))
    if turns[-1].texts:
        raise error(f"{where}: a function's result must follow its call")
    name = calls[message.tool_call_id].name
    text = "\n\n".join(message.texts)
    turns[-1].block.append(result_message(message.tool_call_id, name, text))
