"""infinipot eval documents and infinipot eval chat: what users do, measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from infinipot.cli.app import EPILOG, Model
from infinipot.cli.command_options import CommandOptions, takes
from infinipot.cli.console import BadUse
from infinipot.cli.eval import check_against, evaluation
from infinipot.cli.options import COMMON, POT
from infinipot.cli.parsers import size_from
from infinipot.cli.sweep import (
    METHODS,
    SWEEP,
    Json,
    Out,
    base_options,
    need_results,
    prepare,
    refuse_system,
    show,
    split,
)

Tasks = Annotated[
    str | None,
    typer.Option(metavar="LIST", help="Only these tasks of the files. [default: all]"),
]
Against = Annotated[
    str | None,
    typer.Option(
        metavar="POLICY", help="Compare the others with this one. [default: the first policy]"
    ),
]


def names_of(tasks: str | None) -> list[str] | None:
    if tasks is None:
        return None
    return split(tasks)


@evaluation.command("documents", epilog=METHODS + EPILOG)
@takes(POT, SWEEP, COMMON)
def documents(
    model: Model,
    options: CommandOptions,
    out: Out,
    data: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER",
            help="JSON lines (.jsonl, also .gz): a document, its questions with answers, a metric.",
            show_default=False,
        ),
    ],
    tasks: Tasks = None,
    question: Annotated[
        str,
        typer.Option(
            metavar="MODE",
            help="unknown: a document is read once, all its questions meet that pot. "
            "known: it is read for every question. both.",
        ),
    ] = "both",
    half: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="even or odd: only documents with such a number in their task."
        ),
    ] = None,
    marked: Annotated[
        bool,
        typer.Option(
            "--marked",
            help="Only the questions that the rows mark: core from one pot, "
            "known with a reading each.",
        ),
    ] = False,
    max_length: Annotated[
        int | None,
        typer.Option(
            parser=size_from(2),
            metavar="N",
            help="Longest text for policy full; its middle is cut out. "
            "[default: the model's window]",
        ),
    ] = None,
    against: Against = None,
    json: Json = False,
) -> int:
    """Many questions about each document, from one reading and with a reading each: the table, and
    intervals by document."""
    check_choices(question, half)
    sweep = prepare(options, model, out, "full,truncate,streaming,infinipot")
    refuse_system(options)
    check_against(sweep, against)
    from infinipot.eval.metrics import needed
    from infinipot.eval.short_answers import ALL_METRICS
    from infinipot.eval.tasks import documents as task
    from infinipot.eval.tasks.document_plan import of_half, plan, variants
    from infinipot.eval.tasks.document_rows import read_documents

    base = base_options(options)
    sweep.methods = variants(sweep.methods, base, options["preset"], question)
    listed = of_half(read_documents(data, names_of(tasks)), half)
    metrics = {one.metric for document in listed for one in document.questions}
    needed(metrics, ALL_METRICS)
    units = plan(
        sweep.model,
        sweep.methods,
        listed,
        limit=options["limit"],
        marked=marked,
        max_length=max_length,
    )
    if not units:
        raise BadUse("no questions are left: leave out --half or --marked, or use other files")
    records = sweep.run(units, task, "documents")
    need_results(records)
    text, files = task.write(records, out, against)
    show(records, text, files, json)
    return 0


@evaluation.command("chat", epilog=METHODS + EPILOG)
@takes(POT, SWEEP, COMMON)
def chat(
    model: Model,
    options: CommandOptions,
    out: Out,
    turns: Annotated[
        int | None,
        typer.Option(
            parser=size_from(1),
            metavar="N",
            help="Turns of a generated conversation. [default: 200]",
        ),
    ] = None,
    facts: Annotated[
        int | None,
        typer.Option(
            parser=size_from(1),
            metavar="N",
            help="Facts that are told early and asked for late. [default: 10]",
        ),
    ] = None,
    chats: Annotated[
        int | None,
        typer.Option(
            parser=size_from(1), metavar="N", help="Generated conversations. [default: 10]"
        ),
    ] = None,
    templates: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Facts from all, even or odd templates: choose options with one half, "
            "report the other. [default: all]",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            parser=size_from(0), metavar="N", help="Another seed gives other chats. [default: 0]"
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Instead of generated ones: conversations and their questions, "
            "in the form of eval documents.",
        ),
    ] = None,
    tasks: Tasks = None,
    against: Against = None,
    json: Json = False,
) -> int:
    """Chats of many turns, questions about early ones at the end: the table, and intervals by
    conversation. The question is never known before it is asked."""
    default = "full,sliding_window,truncate,streaming,infinipot"
    generated = {"turns": turns, "told": facts, "half": templates, "seed": seed}
    given = {name: value for name, value in generated.items() if value is not None}
    if data is not None and (given or chats is not None):
        raise BadUse("--data has conversations of its own: leave out the options of generated ones")
    if data is None and tasks is not None:
        raise BadUse("--tasks chooses among the files of --data: give --data, or leave it out")
    sweep = prepare(options, model, out, default, question=False)
    check_against(sweep, against)
    from infinipot.eval.tasks import chat as task

    listed = conversations(data, names_of(tasks), chats or 10, given)
    units = task.plan(sweep.model, sweep.methods, listed, options["system"])
    records = sweep.run(units, task, "chat", options["limit"])
    need_results(records)
    text, files = task.write(records, out, against)
    show(records, text, files, json)
    return 0


def conversations(
    data: Path | None, tasks: list[str] | None, count: int, given: dict[str, Any]
) -> list[Any]:
    """Conversations from the documents of a folder, or so many generated ones. given: fields of
    their plan."""
    from infinipot.eval.metrics import needed
    from infinipot.eval.short_answers import ALL_METRICS
    from infinipot.eval.tasks.conversations import Plan, from_document
    from infinipot.eval.tasks.document_rows import read_documents

    if data is None:
        plan = Plan(**given)
        return [plan.conversation(number) for number in range(count)]
    listed = read_documents(data, tasks)
    needed({one.metric for document in listed for one in document.questions}, ALL_METRICS)
    return [from_document(document) for document in listed]


def check_choices(question: str, half: str | None) -> None:
    if question not in ("known", "unknown", "both"):
        raise BadUse(f"--question {question} is not allowed: it must be known, unknown or both")
    if half not in (None, "even", "odd"):
        raise BadUse(f"--half {half} is not allowed: it must be even or odd")
