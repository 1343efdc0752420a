"""Calls in what models write: whole and in pieces of every size, and texts that only look like calls."""

from __future__ import annotations

import json
from typing import Any

import pytest

from infinipot.text.calls.base import Function
from infinipot.text.calls.registry import FAMILIES, family_of
from infinipot.text.reply import Reply, ReplyReader, reasoning_marks

WEATHER = ("weather", {"city": 'Paris "the {city}" [1]\\', "days": [1, 2.5], "deep": {"x": None}})
PING = ("ping", {})
Q = '<|"|>'
CASES: list[tuple[str, str, str, list[tuple[str, Any]]]] = [
    (
        "hermes",
        f"<tool_call>\n{json.dumps({'name': 'weather', 'arguments': WEATHER[1]})}\n</tool_call>",
        "",
        [WEATHER],
    ),
    (
        "hermes",
        'I look.\n\n<tool_call>{"name":"ping","arguments":{}}</tool_call>\n<tool_call>\n'
        f"{json.dumps({'arguments': WEATHER[1], 'name': 'weather'})}</tool_call>\nDone",
        "I look.Done",
        [PING, WEATHER],
    ),
    ("hermes", '<tool_call>{"name": "ping", "arguments": "{}"}</tool_call>', "", [PING]),
    (
        "hermes",
        "a < b, <tool> and <tool_call> {not json}",
        "a < b, <tool> and <tool_call> {not json}",
        [],
    ),
    ("hermes", '<tool_call>{"name": "ping", "arguments": {}', "", [PING]),
    (
        "qwen_xml",
        'I look.\n\n<tool_call>\n<function=weather>\n<parameter=city>\nParis "the {city}" [1]\\\n</parameter>\n'
        '<parameter=days>\n[1, 2.5]\n</parameter>\n<parameter=deep>\n{"x": null}\n</parameter>\n</function>\n'
        "</tool_call>\n<tool_call>\n<function=ping>\n</function>\n</tool_call>\nDone",
        "I look.Done",
        [WEATHER, PING],
    ),
    ("qwen_xml", "<function=ping>\n</function>\n</tool_call>", "", [PING]),
    (
        "qwen_xml",
        "<tool_call><function=f><parameter=code>\nif a < b:\n\n    '</parameter>'\n\n</parameter></function></tool_call>",
        "",
        [("f", {"code": "if a < b:\n\n    '</parameter>'\n"})],
    ),
    (
        "qwen_xml",
        "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\nx",
        "",
        [("f", {"a": 1, "b": "x"})],
    ),
    ("qwen_xml", "a <tool_call> b <function= c", "a <tool_call> b <function= c", []),
    ("llama3", '{"name": "ping", "parameters": {}}', "", [PING]),
    (
        "llama3",
        f'<|python_tag|>{{"type": "function", "name": "weather", "parameters": {json.dumps(WEATHER[1])}}}',
        "",
        [WEATHER],
    ),
    (
        "llama3",
        '{"name": "ping", "parameters": {}}; {"name": "ping", "parameters": {}}',
        "",
        [PING, PING],
    ),
    ("llama3", '{"city": "Paris"} is JSON', '{"city": "Paris"} is JSON', []),
    ("llama3", "Hello {there}", "Hello {there}", []),
    ("llama3", "<|python_tag|>print(1)", "<|python_tag|>print(1)", []),
    (
        "mistral",
        f'[TOOL_CALLS] [{{"name": "ping", "arguments": {{}}, "id": "abc"}}, {{"name": "weather", "arguments": {json.dumps(WEATHER[1])}}}]',
        "",
        [PING, WEATHER],
    ),
    (
        "mistral",
        f"Yes [TOOL_CALLS]weather[ARGS]{json.dumps(WEATHER[1])}[TOOL_CALLS]ping[CALL_ID]x1[ARGS]{{}}",
        "Yes",
        [WEATHER, PING],
    ),
    ("mistral", "[TOOL_CALLS] nothing", "[TOOL_CALLS] nothing", []),
    (
        "gemma",
        "<start_function_call>call:weather{city:<escape>Paris, {x}<escape>,days:[1,2.5],deep:{x:null}}<end_function_call>"
        "<start_function_call>call:ping{}<end_function_call>",
        "",
        [("weather", {"city": "Paris, {x}", "days": [1, 2.5], "deep": {"x": None}}), PING],
    ),
    (
        "gemma4",
        f"Hm <|tool_call>call:weather{{city:{Q}Paris{Q},ok:true,list:[{Q}a{Q},{{b:{Q}}}{Q}}}]}}<tool_call|>",
        "Hm",
        [("weather", {"city": "Paris", "ok": True, "list": ["a", {"b": "}"}]})],
    ),
    ("gemma4", "<|tool_call>nothing<tool_call|>", "<|tool_call>nothing", []),
    (
        "gpt_oss",
        "<|channel|>analysis<|message|>I must ask.<|end|><|start|>assistant<|channel|>commentary to=functions.weather "
        f"<|constrain|>json<|message|>{json.dumps(WEATHER[1])}<|call|>",
        "",
        [WEATHER],
    ),
    ("gpt_oss", "<|channel|>final<|message|>Hello <b>you</b><|return|>", "Hello <b>you</b>", []),
    ("gpt_oss", " to=functions.ping<|channel|>commentary json<|message|>{}", "", [PING]),
    ("gpt_oss", "no channel at all", "no channel at all", []),
]


def read(family: str, text: str, size: int) -> Reply:
    reader = ReplyReader(None, FAMILIES[family].reader())
    reply = Reply()
    names = 0
    for place in range(0, len(text), size):
        for part in reader.push(text[place : place + size]):
            names += part.name is not None
            assert (
                part.call is None or part.call == names - 1
            )  # a call's parts come together, its name first
            reply.add(part)
    for part in reader.push("", last=True):
        reply.add(part)
    return reply


@pytest.mark.parametrize(
    ("family", "text", "content", "calls"), CASES, ids=lambda one: str(one)[:24]
)
def test_calls_in_pieces_of_every_size(family: str, text: str, content: str, calls: list) -> None:
    whole = read(family, text, len(text))
    found = [(call.name, call.arguments) for call in whole.calls]
    assert [(name, json.loads(arguments)) for name, arguments in found] == calls
    assert whole.content == content
    for size in (1, 2, 3, 5, 7, 11, 13, 17, 29):
        other = read(family, text, size)
        assert [(call.name, call.arguments) for call in other.calls] == found
        assert other.content == content
        assert other.reasoning == whole.reasoning


@pytest.mark.parametrize("cut", ["", "\n", "\n</", "\n</tool_call"])
def test_a_closing_mark_that_was_cut_is_no_text(cut: str) -> None:
    call = f"Yes <tool_call>{json.dumps({'name': PING[0], 'arguments': {}})}"
    reply = read("hermes", call + cut, 3)
    assert [one.name for one in reply.calls] == ["ping"]
    assert reply.content == "Yes"
    assert read("hermes", f"{call}\n</b>", 3).content == "Yes\n</b>"


def test_the_schema_says_which_values_are_texts() -> None:
    text = {"type": "string"}
    properties = {
        "zip": text,
        "days": {"type": "integer"},
        "when": {"anyOf": [text, {"type": "null"}]},
        "sure": {"type": "boolean"},
        "unit": {"enum": ["1", "2"]},
        "place": {"$ref": "#/$defs/place"},
        "any": {},
    }
    schema = {"type": "object", "properties": properties, "$defs": {"place": text}}
    given = {
        "zip": "01234", "days": "3", "when": "2026", "sure": "True", "unit": "1", "place": "[x]", "any": "[2]", "new": "no JSON"
    }  # fmt: skip
    parameters = "".join(f"<parameter={key}>\n{one}\n</parameter>\n" for key, one in given.items())
    reader = ReplyReader(None, FAMILIES["qwen_xml"].of_functions([Function("f", schema)]).reader())
    parts = [
        *reader.push(f"<tool_call>\n<function=f>\n{parameters}</function>\n"),
        *reader.push("", last=True),
    ]
    assert json.loads("".join(part.arguments for part in parts)) == {
        "zip": "01234", "days": 3, "when": "2026", "sure": True, "unit": "1", "place": "[x]", "any": [2], "new": "no JSON"
    }  # fmt: skip


def test_arguments_leave_as_they_arrive() -> None:
    for family, text in (
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "'),
        ("llama3", '{"name": "f", "parameters": {"a": "'),
        ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {"a": "'),
        ("gpt_oss", '<|channel|>commentary to=functions.f<|message|>{"a": "'),
    ):
        reader = FAMILIES[family].reader()
        parts = reader.push(text)
        assert [(part.name, part.arguments) for part in parts] == [("f", '{"a": "')], family
        assert [part.arguments for part in reader.push("xyz")] == ["xyz"]
        assert reader.complete == 0
        reader.push('"}}<|call|>')
        assert reader.complete == 1, family


@pytest.mark.parametrize(
    ("template", "family"),
    [
        ("{{ '<tool_call>' }}", "hermes"),
        ("<tool_call> <function=", "qwen_xml"),
        ("<|python_tag|>", "llama3"),
        ("[AVAILABLE_TOOLS] [TOOL_CALLS] [", "mistral"),
        ("<start_function_call>", "gemma"),
        ("<|tool_call>call:", "gemma4"),
        ("<|channel|>commentary json<|message|> to=functions.", "gpt_oss"),
        ("<|im_start|>", None),
    ],
)
def test_the_template_names_its_family(template: str, family: str | None) -> None:
    found = family_of(template)
    assert (found.name if found else None) == family
    assert family_of(template, "llama3").name == "llama3"
    with pytest.raises(ValueError, match="unknown tool-parser 'hermess'.*did you mean 'hermes'"):
        family_of(template, "hermess")


@pytest.mark.parametrize("size", [1, 2, 5, 100])
@pytest.mark.parametrize(
    ("ask", "text", "reasoning", "content"),
    [
        ("<a>", "<think>\nLet me see.\n</think>\n\nYes.", "Let me see.\n", "Yes."),
        ("<a><think>\n", "Let me see.</think>\nYes.\n", "Let me see.", "Yes.\n"),
        ("<a>", " Yes <think>", "", " Yes <think>"),
        ("<a>", "<thin", "", "<thin"),
        ("<a>", "<think>never closed", "never closed", ""),
        ("<a>", "", "", ""),
    ],
)
def test_reasoning_apart(ask: str, text: str, reasoning: str, content: str, size: int) -> None:
    marks = reasoning_marks("{{ '<think>' }} </think>", ask)
    reader = ReplyReader(marks, None)
    reply = Reply()
    for place in range(0, len(text), size):
        for part in reader.push(text[place : place + size]):
            reply.add(part)
    for part in reader.push("", last=True):
        reply.add(part)
    assert (reply.reasoning, reply.content) == (reasoning, content)
    assert reasoning_marks("<|im_start|>", ask) is None


def test_a_call_behind_reasoning() -> None:
    marks = reasoning_marks("</think>", "<think>")
    reader = ReplyReader(marks, FAMILIES["hermes"].reader())
    text = (
        'I think <tool_call> of it</think>\n<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    )
    parts = [part for letter in text for part in reader.push(letter)]
    assert "".join(part.reasoning for part in parts) == "I think <tool_call> of it"
    assert [part.name for part in parts if part.name] == ["f"]
    assert "".join(part.content for part in parts) == ""


def test_only_one_call_if_only_one_is_asked_for() -> None:
    """The answer ends where a second call begins, or text follows; what is kept ends with its mark."""
    from tiny import make_tokenizer

    from infinipot.server.answer_form import AnswerForm
    from infinipot.server.jobs.spoken import Spoken

    tokenizer = make_tokenizer(size=100)
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    for behind in (call, "Text"):
        spoken = Spoken(tokenizer, AnswerForm(FAMILIES["hermes"], single_call=True), ())
        for token in tokenizer.encode("Yes " + call):
            spoken.push(token)
        assert not spoken.stopped
        for token in tokenizer.encode(behind):
            spoken.push(token)
        spoken.finish()
        assert spoken.stopped
        assert [one.name for one in spoken.reply.calls] == ["f"]
        assert spoken.reply.content == "Yes"
