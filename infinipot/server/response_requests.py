"""From POST /v1/responses to the same request of a chat."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from infinipot.server.response_fields import (
    CallItem,
    ChosenTool,
    Content,
    Item,
    MessageItem,
    ResponseRequest,
    ResultItem,
    SchemaText,
)
from infinipot.server.response_store import Messages, ResponseStore
from infinipot.server.schema import ChatRequest, Options
from infinipot.text.reply import Reply

SAME = (
    "tools",
    "parallel_tool_calls",
    "chat_template_kwargs",
    "include_reasoning",
    "service_tier",
    "prompt_cache_key",
)


def chat_request(body: ResponseRequest, store: ResponseStore) -> tuple[ChatRequest, Messages]:
    """The chat's request, and the messages that are new in it. Raises APIError if the response
    before is not known."""
    new = input_messages(body)
    before: Messages = []
    if body.previous_response_id is not None:
        before = store.messages(body.previous_response_id)
    system: Messages = []
    if body.instructions:
        system = [{"role": "system", "content": body.instructions}]
    fields: dict[str, Any] = {
        name: value for name in Options.model_fields if (value := getattr(body, name)) is not None
    }
    fields |= {name: value for name in SAME if (value := getattr(body, name)) is not None}
    fields["messages"] = [*system, *before, *new]
    if body.max_output_tokens is not None:
        fields["max_completion_tokens"] = body.max_output_tokens
    if body.tools is not None:
        fields["tools"] = [
            {"type": "function", "function": tool.model_dump(exclude={"type"})}
            for tool in body.tools
        ]
    if body.tool_choice is not None:
        fields["tool_choice"] = choice_of(body.tool_choice)
    if body.reasoning is not None and body.reasoning.effort is not None:
        fields["reasoning_effort"] = body.reasoning.effort
    fields |= response_format(body)
    return ChatRequest.model_validate(fields), new


def choice_of(choice: str | ChosenTool) -> Any:
    if isinstance(choice, ChosenTool):
        return {"type": "function", "function": {"name": choice.name}}
    return choice


def response_format(body: ResponseRequest) -> dict[str, Any]:
    asked = body.text.format if body.text is not None else None
    if asked is None:
        return {}
    if isinstance(asked, SchemaText):
        schema = asked.model_dump(by_alias=True, exclude={"type"}, exclude_none=True)
        return {"response_format": {"type": "json_schema", "json_schema": schema}}
    return {"response_format": asked.model_dump()}


def input_messages(body: ResponseRequest) -> Messages:
    if isinstance(body.input, str):
        return [{"role": "user", "content": body.input}]
    return messages_of(body.input)


def messages_of(items: Iterable[Item]) -> Messages:
    """Items as messages of a chat. Calls one after another are one message."""
    messages: Messages = []
    for item in items:
        if isinstance(item, MessageItem):
            messages.append({"role": item.role, "content": texts(item.content)})
        elif isinstance(item, CallItem):
            add_call(messages, item)
        elif isinstance(item, ResultItem):
            output = "\n\n".join(part["text"] for part in texts(item.output))
            messages.append({"role": "tool", "tool_call_id": item.call_id, "content": output})
    return messages


def texts(content: Content) -> Any:
    """Parts of a chat's message."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [{"type": "text", "text": part.text} for part in content]


def add_call(messages: Messages, item: CallItem) -> None:
    function = {"name": item.name, "arguments": item.arguments}
    call = {"id": item.call_id, "type": "function", "function": function}
    if messages and messages[-1]["role"] == "assistant":
        messages[-1].setdefault("tool_calls", []).append(call)
    else:
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})


def answer_message(reply: Reply) -> dict[str, Any]:
    """An answer as a message of the conversation that goes on."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.content}
    if reply.calls:
        message["tool_calls"] = [call.message() for call in reply.calls]
    return message
