"""Answers of a given form: random models write what the grammar says, each row of a batch its own."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import pytest
import torch
from tiny import make_tiny, make_tokenizer

from infinipot import PotConfig, Sampling, Session
from infinipot.engine.decode import together
from infinipot.engine.sampling import Sampler
from infinipot.text.calls.base import Function
from infinipot.text.calls.registry import FAMILIES, Mistral
from infinipot.text.reply import Reply, ReplyReader

pytest.importorskip("llguidance", reason="llguidance is not installed: the extra structured")

from infinipot.engine.structured import Form, TokenRules, closed

TOKENS = (
    "<tool_call>",
    "<|python_tag|>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "<start_function_call>",
    "<end_function_call>",
    "<escape>",
    "<|tool_call>",
    "<tool_call|>",
    '<|"|>',
    "<|channel|>",
    "<|message|>",
    "<|constrain|>",
    "<|start|>",
)
SIZE = 100 + len(TOKENS)
SCHEMA = {
    "type": "object",
    "properties": {
        "unit": {"enum": ["C", "F"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 99},
        "deep": {
            "type": "object",
            "properties": {"ok": {"type": "boolean"}},
            "required": ["ok"],
            "additionalProperties": False,
        },
    },
    "required": ["unit", "days", "deep"],
    "additionalProperties": False,
}
TOKENIZER = make_tokenizer(size=SIZE, more=TOKENS)
END = 1
RULES = TokenRules(TOKENIZER, SIZE, {END})


@pytest.fixture(scope="module")
def session() -> Session:
    one = Session(make_tiny("llama", vocab=SIZE), TOKENIZER, PotConfig(pot_size=512, distill_to=60))
    one.append("What is the weather like?")
    return one


def written(session: Session, *grammars: str | None, **sampling: Any) -> list[str]:
    """What the model writes by these grammars, all in one batch; with special tokens."""
    runs = []
    for number, grammar in enumerate(grammars):
        constraint = RULES.constraint(grammar) if grammar else None
        options = {"max_tokens": 160, "temperature": 1.0, "seed": number, **sampling}
        pick = Sampler(Sampling(**options), constraint)
        runs.append(session.fork().generation("Say", max_tokens=160, pick=pick, stop_ids={END}))
    tokens: list[list[int]] = [[] for _ in runs]
    for step in together(runs):
        for number, token in step:
            tokens[number].append(token)
    return [TOKENIZER.decode(one) for one in tokens]


def test_forms(session: Session) -> None:
    forms = [
        Form("json", SCHEMA),
        Form("regex", r"[0-9]{3}-[a-c]+(x|y)"),
        Form("choice", ["yes", "no", 'a "quoted" one']),
        Form("grammar", 'root ::= "a" ("b" | "c")+ "."'),
        Form("grammar", 'start: "<" /[0-9]{2}/ ">"'),
    ]
    texts = written(session, *(RULES.grammar(form) for form in forms), None)
    data = json.loads(texts[0])
    assert set(data) == {"unit", "days", "deep"} and data["unit"] in ("C", "F")
    assert 1 <= data["days"] <= 99 and isinstance(data["deep"]["ok"], bool)
    assert re.fullmatch(r"[0-9]{3}-[a-c]+(x|y)", texts[1])
    assert texts[2] in forms[2].content
    assert re.fullmatch(r"a[bc]+\.", texts[3])
    assert re.fullmatch(r"<[0-9]{2}>", texts[4])
    assert texts[5] == written(session, *[None] * 6)[5]  # a free row is as without the others
    assert texts[:1] == written(session, RULES.grammar(forms[0]))


@pytest.mark.parametrize(
    "family", [*FAMILIES.values(), Mistral(named=True)], ids=lambda one: one.name
)
def test_calls_of_every_family(session: Session, family: Any) -> None:
    """What its grammar allows, its reader reads; strict ones are allowed in the middle of a text."""
    functions = [
        Function("weather", SCHEMA),
        Function("ping", {"type": "object", "properties": {}, "additionalProperties": False}),
    ]
    grammars = [RULES.calls(family, functions[:1], False)]
    if family.name != "llama3":
        grammars.append(RULES.calls(family, functions, True))
    if family.bans:
        RULES.strict_calls(family, functions, True)
    ended = 0
    likely = {0: 8.0} if family.name == "gpt_oss" else {}  # reasoning ends
    for text in written(session, *grammars, logit_bias=likely):
        reader = ReplyReader(None, family.reader())
        reply = Reply()
        for part in (*reader.push(text), *reader.push("", last=True)):
            reply.add(part)
        complete = reply.calls[: reader.complete]
        if not complete:  # cut at max_tokens
            assert len(text) > 100
            continue
        ended += 1
        assert not reply.content or len(text) > 100
        for call in complete:
            arguments = json.loads(call.arguments)
            assert set(arguments) == (
                set(SCHEMA["properties"]) if call.name == "weather" else set()
            )
    assert ended


def accepted(grammar: str, text: str) -> bool:
    """Whether an answer may be this text."""
    constraint = RULES.constraint(grammar)
    for token in TOKENIZER.encode(text):
        mask = torch.zeros((SIZE + 31) // 32, dtype=torch.int32)
        constraint.fill(mask)
        if not mask[token // 32] >> (token % 32) & 1:
            return False
        constraint.accept(token)
    constraint.fill(mask.zero_())
    return bool(mask[END // 32] >> (END % 32) & 1)


def test_xml_values_follow_their_schema() -> None:
    """Texts as they are, of any letters; others as JSON; what is not required may be left out."""
    schema = {
        "type": "object",
        "properties": {
            "code": {"type": "string"},
            "days": {"type": "integer", "maximum": 9},
            "unit": {"enum": ["C", "F"]},
        },
        "required": ["code"],
    }
    family = FAMILIES["qwen_xml"]
    grammar = RULES.calls(family, [Function("run", schema)], False)

    def call(**values: str) -> str:
        parts = [f"<parameter={key}>\n{one}\n</parameter>\n" for key, one in values.items()]
        return f"<tool_call>\n<function=run>\n{''.join(parts)}</function>\n</tool_call>"

    assert accepted(grammar, call(code='if a < b:\n\n  print("</p>")'))
    assert accepted(grammar, call(code="", days="7", unit="F"))
    assert accepted(grammar, call(code="1", unit="C"))
    for wrong in ({}, {"days": "7"}, {"code": "x", "days": "seven"}, {"code": "x", "unit": "K"}):
        assert not accepted(grammar, call(**wrong))
    schema["properties"]["code"]["pattern"] = "[a-z]"
    with pytest.raises(ValueError, match="pattern of a text is not possible"):
        RULES.calls(family, [Function("run", schema)], False)


def test_what_is_no_token_is_letters() -> None:
    """Also with a tokenizer that gives the unknown token for it."""
    tokenizer = make_tokenizer(size=100)
    tokenizer.unk_token = "<|end|>"
    rules = TokenRules(tokenizer, 100, {END})
    assert tokenizer.convert_tokens_to_ids("<tool_call>") == 0
    assert [rules.quote(text) for text in ("<tool_call>", "<|user|>")] == ['"<tool_call>"', "<[1]>"]


def test_the_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(ValueError, match=r"pip install 'infinipot\[structured\]'"):
        TokenRules(TOKENIZER, SIZE, {END})


def test_a_grammar_may_wait_for_a_token(session: Session) -> None:
    grammar = RULES.grammar(Form("choice", ["yes"]))
    wakes = TOKENIZER.convert_tokens_to_ids("<|start|>")
    constraint = RULES.constraint(grammar, wakes)
    mask = torch.zeros(4, dtype=torch.int32)
    constraint.fill(mask)
    assert (mask == -1).all()
    for token in (20, 30, wakes):
        constraint.accept(token)
    constraint.fill(mask)
    allowed = [token for token in range(SIZE) if mask[token // 32] >> (token % 32) & 1]
    assert allowed == TOKENIZER.encode("y")
    constraint.accept(50)  # not allowed: only an end may follow, and the problem is known
    constraint.fill(mask)
    assert [int(word) & 0xFFFFFFFF for word in mask] == [1 << END, 0, 0, 0]
    assert constraint.problem


def test_objects_have_the_members_that_are_named() -> None:
    inner = {"type": "object", "properties": {"properties": {"type": "string"}}}
    schema = {"type": "object", "properties": {"a": inner, "b": {"enum": [{"properties": {}}]}}}
    found = closed(schema)
    assert (
        found["additionalProperties"] is found["properties"]["a"]["additionalProperties"] is False
    )
    assert set(found["properties"]) == {"a", "b"}
    assert found["properties"]["b"] == schema["properties"]["b"]
    for opened in (
        {"type": "object"},
        {**inner, "additionalProperties": True},
        {**inner, "allOf": []},
    ):
        assert closed(opened) == opened


@pytest.mark.parametrize(
    ("form", "message"),
    [
        (Form("json", {"type": "wibble"}), "Invalid type: wibble"),
        (Form("json", {"not": {"type": "string"}}), "Unimplemented keys"),
        (Form("regex", "a(("), "unclosed group"),
        (Form("grammar", "start: nothing_here"), "nothing_here"),
        (Form("grammar", "root ::= ((("), "grammar"),
    ],
)
def test_one_sentence_for_what_is_no_form(form: Form, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RULES.grammar(form)
