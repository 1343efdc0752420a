"""The plugin for simonw/llm: `llm -m infinipot/smollm2 -f book.txt "Who hid the letter?"`.

Fragments are the text, the prompt is the question; it is known while the text is read.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import llm

from infinipot.checks import EMBEDDED

if TYPE_CHECKING:
    from infinipot import PotConfig, Session

FILE = "infinipot-models.json"
LONG = 2000
"""Characters from which on a prompt of several lines is a text, and its last line the question:
so comes what is piped into llm."""
SAMPLING = ("max_tokens", "temperature", "top_k", "top_p", "min_p", "seed")


def models_file() -> Path:
    return Path(llm.user_dir()) / FILE


def added_models() -> list[str]:
    """The models that the user has added."""
    try:
        return [str(name) for name in json.loads(models_file().read_text("utf-8"))]
    except FileNotFoundError:
        return []


@llm.hookimpl
def register_models(register: Any) -> None:
    for name in (EMBEDDED, *added_models()):
        register(PotModel(name))


@llm.hookimpl
def register_commands(cli: Any) -> None:
    import click

    @cli.group(name="infinipot")
    def commands() -> None:
        """Models that read text without end in a pot of fixed size."""

    @commands.command(name="add")
    @click.argument("model")
    def add(model: str) -> None:
        """Add MODEL (a Hub id, a folder, or a .gguf file) as infinipot/MODEL."""
        from infinipot.checks import check_model_name

        try:
            check_model_name(model)
        except ValueError as problem:
            raise click.ClickException(str(problem)) from None
        if Path(model).exists():
            model = str(Path(model).resolve())
        names = list(dict.fromkeys([*added_models(), model]))
        models_file().write_text(json.dumps(names), "utf-8")
        click.echo(f"llm -m infinipot/{model}")


class Options(llm.Options):  # type: ignore[misc]
    """Options of the answer and of the pot. None: as in infinipot."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    pot_size: int | None = None
    distill_to: int | None = None
    policy: str | None = None
    preset: str | None = None
    catalyst: str | None = None
    novelty: float | None = None


@dataclasses.dataclass(frozen=True)
class Exchange:
    """What a user gave, and the answer, if there is one."""

    text: str | None
    question: str | None
    answer: str | None = None


class PotModel(llm.Model):  # type: ignore[misc]
    """A model that answers from a pot."""

    can_stream = True
    Options = Options

    def __init__(self, name: str) -> None:
        self.model_id = f"infinipot/{name}"
        self.name = name
        self.loaded: tuple[Any, Any] | None = None
        self.live: tuple[Any, Session] | None = None
        """The last conversation, by its past, and its session: `llm chat` goes on from it."""

    def execute(self, prompt: Any, stream: bool, response: Any, conversation: Any) -> Iterator[str]:
        try:
            yield from self._answer(prompt, response)
        except (ValueError, TypeError, OSError) as problem:
            self.live = None
            raise llm.ModelError(str(problem)) from problem

    def _answer(self, prompt: Any, response: Any) -> Iterator[str]:
        options = prompt.options.model_dump(exclude_none=True)
        sampling = {name: options.pop(name) for name in SAMPLING if name in options}
        config = pot_config(options)
        refuse_others(prompt)
        system, past = history(prompt)
        session = self._session((system, past), config)
        self.live = None
        now = exchange(list(prompt.fragments), prompt._prompt)
        before = session.stats.tokens_read
        if now.text is not None:
            append(session, now.text, now.question)
        pieces = session.stream(now.question, keep=True, aware=now.text is not None, **sampling)
        text = ""
        for piece in pieces:
            text += piece
            yield piece
        read = session.stats.tokens_read - before - len(pieces.ids)
        response.set_usage(input=read, output=len(pieces.ids))
        response.response_json = {"finish_reason": pieces.finish_reason}
        now = exchange([], prompt.prompt)  # as the log gives it back
        past = (*past, dataclasses.replace(now, answer=text))
        self.live = (system, past, config), session

    def _session(self, past: tuple[Any, tuple[Exchange, ...]], config: PotConfig) -> Session:
        """The session of a conversation: the last one, or a new one that has read its past."""
        from infinipot import Session, load

        if self.live is not None and self.live[0] == (*past, config):
            return self.live[1]
        if self.loaded is None:
            from infinipot.cli.console import silence

            silence(quiet=True)
            self.loaded = load(self.name)
        model, tokenizer = self.loaded
        system, exchanges = past
        session = Session(model, tokenizer, config, system=system)
        for one in exchanges:
            if one.text is not None:
                append(session, one.text, one.question)
            session.recall(one.question or "", one.answer or "")
        return session


def pot_config(options: dict[str, Any]) -> PotConfig:
    from infinipot import PotConfig

    return PotConfig(**options)


class Whole:
    """A text whose number of tokens is not known before it is read."""

    def share(self, tokens: int, given: int) -> None:
        return None


def append(session: Session, text: str, question: str | None) -> None:
    """Read a text. A terminal shows how far it is."""
    from infinipot.cli.progress import ReadingProgress

    progress = ReadingProgress(session, Whole(), quiet=False)
    progress.quiet = not progress.live
    try:
        session.append(text, question=question, progress=progress)
    finally:
        progress.close()


def refuse_others(prompt: Any) -> None:
    """Raise ValueError for what a pot cannot take."""
    for name in ("attachments", "tools", "tool_results", "schema"):
        if getattr(prompt, name, None):
            raise ValueError(f"infinipot takes text alone: leave out {name.replace('_', ' ')}")


def exchange(fragments: list[Any], prompt: str | None) -> Exchange:
    """Text and question of a prompt."""
    if fragments:
        return Exchange("\n".join(str(one) for one in fragments), prompt or None)
    text, line, question = (prompt or "").rstrip().rpartition("\n")
    if line and len(text) > LONG:
        return Exchange(text, question.strip())
    return Exchange(None, prompt)


def history(prompt: Any) -> tuple[str | None, tuple[Exchange, ...]]:
    """The system prompt, and what was said before this prompt."""
    system: list[str] = []
    said: list[list[str]] = []
    for message in prompt.messages:
        text = "".join(getattr(part, "text", "") for part in message.parts)
        if message.role == "system":
            system.append(text)
        elif message.role == "user":
            said.append([text])
        elif message.role == "assistant" and said:
            said[-1].append(text)
    past = [
        dataclasses.replace(exchange([], user), answer="".join(answers))
        for user, *answers in said
        if answers
    ]
    return "\n\n".join(dict.fromkeys(system)) or None, tuple(past)
