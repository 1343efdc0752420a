"""infinipot generate"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infinipot.cli.app import Json, Model, Question, SavedPot, TextFiles, app
from infinipot.cli.command_options import CommandOptions, takes
from infinipot.cli.console import BadUse, check_utf8, put
from infinipot.cli.options import COMMON, POT, SAMPLING
from infinipot.text.json_text import json_text

if TYPE_CHECKING:
    from infinipot import Session
    from infinipot.cli.answer import Answer
    from infinipot.cli.session import Job

NewPot = Annotated[
    Path | None,
    typer.Option(
        "--save-pot",
        metavar="FILE",
        help="Save the pot here, after reading and before the question.",
    ),
]


Words = Annotated[
    str | None,
    typer.Argument(metavar="PROMPT", help="The question, as -p.", show_default=False),
]


@app.command("generate")
@takes(POT, SAMPLING, COMMON)
def generate(
    model: Model,
    options: CommandOptions,
    words: Words = None,
    file: TextFiles = None,
    prompt: Question = None,
    pot: SavedPot = None,
    save_pot: NewPot = None,
    json: Json = False,
) -> int:
    """Read a text and answer a question about it."""
    from infinipot.cli.session import prepare
    from infinipot.cli.source import source_of

    prompt = only_prompt(prompt, words)
    source = source_of(file)
    if source is None and not prompt:
        raise BadUse(
            "nothing to read and nothing to answer: "
            "give a text with -f FILE or piped in, a question with -p, or both"
        )
    job = prepare(options, source=source, question=prompt, pot=pot, save=save_pot)
    return respond(job, model, json)


def respond(job: Job, model: str, json: bool) -> int:
    """Read the text, answer the question, show the answer. Returns the exit code."""
    from infinipot.cli.answer import answer, report_cut
    from infinipot.cli.session import open_session, read

    session = open_session(job, model)
    read(job, session)
    if json:
        reply = answer(session, job.question, job.sampling, show=lambda piece: None)
        put(json_text(document(job, session, reply)) + "\n")
    else:
        reply = answer(session, job.question, job.sampling, show=put)
        put("\n")
    report_cut(reply, job.options)
    report(job, session, reply)
    if reply.stopped:
        return 130
    return 0


def only_prompt(prompt: str | None, words: str | None) -> str | None:
    """The question, from -p or from its place behind MODEL."""
    if prompt is not None and words is not None:
        raise BadUse(f"two questions, {words!r:.80} and -p {prompt!r:.80}: give one of them")
    check_utf8("the question", words)
    if words is not None:
        return words
    return prompt


def report(job: Job, session: Session, reply: Answer) -> None:
    """The statistics, with the speeds that were measured."""
    from infinipot.cli import session as shared

    speeds = []
    if job.read_tps:
        speeds.append(f"read {job.read_tps:,.0f} tok/s")
    if reply.tps:
        speeds.append(f"answered {reply.tps:,.1f} tok/s")
    shared.report(job, session, *speeds)


def document(job: Job, session: Session, reply: Answer) -> dict[str, Any]:
    """What --json prints."""
    stats = session.stats
    return {
        "text": reply.text,
        "finish_reason": reply.finish_reason,
        "usage": {
            "prompt_tokens": stats.tokens_read - reply.tokens,
            "completion_tokens": reply.tokens,
        },
        "pot": {
            "size": session.pot.size,
            "entries": stats.entries,
            "peak_entries": stats.peak_entries,
            "distillations": stats.distillations,
            "bytes": stats.pot_bytes,
            "full_cache_bytes": stats.full_cache_bytes,
            "policy": job.config.policy.name,
        },
        "timings": timings(job, session, reply),
    }


def timings(job: Job, session: Session, reply: Answer) -> dict[str, float | None]:
    seconds = {
        "load_s": job.load_s,
        "read_s": job.read_s,
        "distill_s": session.stats.timings["distill_s"],
        "first_token_s": reply.first_token_s,
        "answer_s": reply.seconds,
        "read_tps": job.read_tps,
        "answer_tps": reply.tps,
    }
    return {name: None if value is None else round(value, 4) for name, value in seconds.items()}
