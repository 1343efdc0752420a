"""What a request asks of the form of an answer: its tools, its schema, its reasoning."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from transformers import PreTrainedTokenizerBase

from infinipot.engine.sampling import end_tokens
from infinipot.engine.structured import Form, token_rules
from infinipot.sampling import PENALTY, Sampling
from infinipot.server.answer_form import AnswerForm
from infinipot.server.errors import APIError
from infinipot.server.prompts import Style
from infinipot.server.schema import ChatRequest, Options
from infinipot.server.service import Service
from infinipot.server.text_prompts import Prompt
from infinipot.server.tool_fields import NamedChoice, ObjectFormat, SchemaFormat, Tool
from infinipot.text.calls.base import Family, Function
from infinipot.text.calls.registry import FAMILIES, family_of
from infinipot.text.rendering import RESERVED, TemplateOptions, template_source

NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}
ANY_OBJECT = {"type": "object"}


@dataclass(frozen=True)
class ToolUse:
    """The functions of a request, and whether they must be called."""

    functions: list[Function] = field(default_factory=list)
    choice: str = "none"
    """none, auto, required."""
    strict: bool = False
    several: bool = True

    @property
    def forced(self) -> bool:
        return self.choice == "required"


# ---------------------------------------------------------------- what is asked


def tool_use(body: ChatRequest) -> ToolUse:
    """Check tools and tool_choice. Raises APIError."""
    tools = body.tools or []
    names = [tool.function.name for tool in tools]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise APIError(400, f"tools names the function {twice!r} twice", param="tools")
    choice = body.tool_choice
    if not tools:
        if choice not in (None, "none", "auto"):
            message = "tool_choice asks for a call, but there are no tools: give tools, too"
            raise APIError(400, message, param="tool_choice")
        return ToolUse()
    chosen = list(tools)
    if isinstance(choice, NamedChoice):
        name = choice.function.name
        chosen = [tool for tool in tools if tool.function.name == name]
        if not chosen:
            message = f"tool_choice names {name!r}, which is not among tools: {', '.join(names)}"
            raise APIError(400, message, param="tool_choice")
        choice = "required"
    several = body.parallel_tool_calls is not False and not isinstance(
        body.tool_choice, NamedChoice
    )
    strict = any(tool.function.strict for tool in chosen)
    functions = [function_of(tool) for tool in chosen]
    return ToolUse(functions, choice or "auto", strict, several)


def function_of(tool: Tool) -> Function:
    schema = tool.function.parameters
    return Function(tool.function.name, NO_PARAMETERS if schema is None else schema)


def form_of(body: Options) -> Form | None:
    """The form that a request asks for; None: any. Raises APIError if there are several."""
    found: list[tuple[str, Form]] = []
    structure = body.structured_outputs
    if structure is not None:
        given: dict[str, Any] = {
            "json": structure.json_,
            "regex": structure.regex,
            "choice": structure.choice,
            "grammar": structure.grammar,
            "json_object": structure.json_object or None,
        }
        parts = [(f"structured_outputs.{name}", name, one) for name, one in given.items()]
    else:
        parts = []
    for name in ("json", "regex", "choice", "grammar"):
        parts.append((f"guided_{name}", name, getattr(body, f"guided_{name}")))
    found = [(field, made(field, name, one)) for field, name, one in parts if one is not None]
    if isinstance(body, ChatRequest):
        found += [("response_format", form) for form in response_form(body)]
    if len(found) > 1:
        names = ", ".join(name for name, _ in found)
        raise APIError(400, f"{names} are given: an answer has one form", param=found[1][0])
    return found[0][1] if found else None


def made(name: str, kind: str, content: Any) -> Form:
    if kind == "json_object":
        return Form("json", ANY_OBJECT)
    if kind == "json" and isinstance(content, str):
        try:
            content = json.loads(content)
        except ValueError as problem:
            raise APIError(400, f"{name} is no JSON: {problem}", param=name) from None
        if not isinstance(content, dict):
            raise APIError(400, f"{name} must be a JSON schema, an object", param=name)
    return Form(kind, content)


def response_form(body: ChatRequest) -> list[Form]:
    asked = body.response_format
    if isinstance(asked, ObjectFormat):
        return [Form("json", ANY_OBJECT)]
    if isinstance(asked, SchemaFormat):
        schema = asked.json_schema.schema_
        return [Form("json", ANY_OBJECT if schema is None else schema)]
    return []


def style_of(service: Service, body: ChatRequest) -> Style:
    """How the request uses the chat template. Raises APIError."""
    values = dict(body.chat_template_kwargs or {})
    for name in values:
        if name in RESERVED:
            message = f"chat_template_kwargs.{name} is a field of the request: give it there"
            raise APIError(400, message, param="chat_template_kwargs")
    if body.reasoning_effort is not None:
        values.setdefault("reasoning_effort", body.reasoning_effort)
    if body.continue_final_message and body.add_generation_prompt:
        message = "continue_final_message begins no answer: leave add_generation_prompt out"
        raise APIError(400, message, param="add_generation_prompt")
    told = bool(body.tools) or any(one.tool_calls or one.tool_call_id for one in body.messages)
    options = TemplateOptions(
        tools=tuple(tool.model_dump(exclude_none=True) for tool in body.tools or ()),
        values=values,
        source=service.settings.tool_template if told else None,
        begins_answer=bool(body.continue_final_message) or body.add_generation_prompt is not False,
    )
    source = template_source(service.engine.tokenizer, options)
    family = family_of(source, service.settings.tool_parser)
    return Style(options, family, bool(body.continue_final_message))


# ---------------------------------------------------------------- what follows


def answer_form(
    service: Service, body: ChatRequest, style: Style, prompt: Prompt, sampling: Sampling
) -> tuple[AnswerForm, Sampling]:
    """The form of a chat's answer, and its sampling. It may take a second. Raises APIError."""
    tools = tool_use(body)
    family = style.family
    if tools.functions and family is None:
        names = ", ".join(FAMILIES)
        raise APIError(
            400,
            "it is not known how this model writes calls: leave tools out, or start the server "
            f"with --tool-parser ({names})",
            param="tools",
        )
    exchange = prompt.exchange
    marks = exchange.marks if exchange is not None else None
    reads = family is not None and (tools.choice != "none" or family.spells_reasoning)
    form = AnswerForm(
        family.of_functions(tools.functions) if family is not None and reads else None,
        None if style.continues else marks,
        hides_reasoning=body.include_reasoning is False,
        single_call=not tools.several,
    )
    tokenizer = service.engine.tokenizer
    spelled = (*(form.family.tokens if form.family else ()), *(marks.texts if marks else ()))
    form = replace(form, spelled=frozenset(token_ids(tokenizer, spelled)))
    if family is not None and reads:
        more = token_ids(tokenizer, family.ends)
        sampling = replace(sampling, stop_token_ids=(*sampling.stop_token_ids, *more))
    if family is not None and tools.functions and tools.choice == "none":
        bans = {token: -PENALTY for token in token_ids(tokenizer, family.bans)}
        sampling = replace(sampling, logit_bias={**dict(sampling.logit_bias), **bans})  # type: ignore[arg-type]
    return constrained(service, body, form, tools, (prompt, family)), sampling


def constrained(
    service: Service,
    body: ChatRequest,
    form: AnswerForm,
    tools: ToolUse,
    written: tuple[Prompt, Family | None],
) -> AnswerForm:
    """The form with its grammar. written: the prompt, and how the model writes answers."""
    prompt, family = written
    asked = form_of(body)
    if asked is None and not tools.forced and not (tools.choice == "auto" and tools.strict):
        return form
    check_ends(body)
    engine = service.engine
    ends = ends_of(service, prompt, family if form.family else None)
    param = "tools" if asked is None else "response_format"
    try:
        rules = token_rules(engine.tokenizer, engine.runner.vocabulary, ends)
        if tools.forced and family is not None:
            grammar = rules.calls(family, tools.functions, tools.several)
        elif asked is not None:
            callable_ = tools.functions if tools.choice == "auto" else []
            grammar = rules.grammar(asked, family, callable_, tools.several)
        else:
            assert family is not None
            grammar = rules.strict_calls(family, tools.functions, tools.several)
    except ValueError as problem:
        raise APIError(400, str(problem), param=param) from None
    form = replace(form, rules=rules, grammar=grammar)
    return after_reasoning(engine.tokenizer, form)


def after_reasoning(tokenizer: PreTrainedTokenizerBase, form: AnswerForm) -> AnswerForm:
    """A model that is made to begin with its reasoning has its form behind that."""
    marks = form.marks
    if marks is None or not marks.begun:
        return form
    close = token_ids(tokenizer, (marks.close,))
    if close:
        return replace(form, wakes=close[0])
    return replace(form, marks=None)  # without such a token it cannot reason here


def completion_form(service: Service, body: Options) -> AnswerForm:
    """The form of a completion's answer."""
    asked = form_of(body)
    if asked is None:
        return AnswerForm()
    check_ends(body)
    engine = service.engine
    ends = end_tokens(engine.runner.model, engine.tokenizer)
    try:
        rules = token_rules(engine.tokenizer, engine.runner.vocabulary, ends)
        return AnswerForm(rules=rules, grammar=rules.grammar(asked))
    except ValueError as problem:
        raise APIError(400, str(problem), param="structured_outputs") from None


def check_ends(body: Options) -> None:
    """Refuse options that would keep an answer from ending where its form ends."""
    for name in ("min_tokens", "ignore_eos"):
        if getattr(body, name):
            message = f"{name} does not go together with a form of the answer: leave one out"
            raise APIError(400, message, param=name)


def ends_of(service: Service, prompt: Prompt, family: Family | None) -> set[int]:
    """All tokens that end a chat's answer."""
    engine = service.engine
    ends = end_tokens(engine.runner.model, engine.tokenizer)
    exchange = prompt.exchange
    if exchange is not None and exchange.end:
        ends |= set(token_ids(engine.tokenizer, (exchange.end,)))
    if family is not None:
        ends |= set(token_ids(engine.tokenizer, family.ends))
        ends -= set(token_ids(engine.tokenizer, family.goes_on))
    return ends


def token_ids(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[int]:
    """The ids of those texts that are one token of their own."""
    vocabulary = tokenizer.get_added_vocab()
    return [vocabulary[text] for text in texts if text in vocabulary]
