"""infinipot eval: benchmarks of other projects."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from infinipot.cli.app import EPILOG, App, Model, app
from infinipot.cli.command_options import CommandOptions, takes
from infinipot.cli.console import BadUse
from infinipot.cli.options import COMMON, POT
from infinipot.cli.parsers import size_from
from infinipot.cli.sweep import (
    METHODS,
    SWEEP,
    Json,
    Out,
    Sweep,
    base_options,
    need_results,
    prepare,
    refuse_system,
    show,
    size,
    split,
)
from infinipot.text.files import check_file

evaluation = App(
    add_completion=False,
    help="Benchmarks: documents with many questions, long chats, LongBench, perplexity over a long "
    "text, and the tasks of lm-evaluation-harness.",
    short_help="Benchmarks: documents, chats, LongBench, perplexity, lm-evaluation-harness",
)
app.add_typer(evaluation, name="eval")


LONGBENCH = (
    "A folder with LongBench's .jsonl files (also .gz): unpack data.zip of "
    "https://huggingface.co/datasets/THUDM/LongBench."
)
"""Where LongBench's rows come from. They are not part of this package."""


def need_folder(data: Path | None, style: Path | None) -> None:
    if data is None and style is None:
        raise BadUse(f"no rows: give them with --data, or others with --style. {LONGBENCH}")


def rows(data: Path | None, style: Path | None, tasks: str | None) -> dict[str, list[Any]]:
    """LongBench rows by kind, genuine or made in its style."""
    need_folder(data, style)
    from infinipot.eval.tasks import longbench as task

    names = None
    if tasks:
        names = split(tasks)
    return {
        kind: task.read_rows(folder, names)
        for kind, folder in ((task.GENUINE, data), (task.STYLE, style))
        if folder is not None
    }


def check_metrics(sets: dict[str, list[Any]]) -> None:
    """Refuse rows whose metrics need packages that are not installed."""
    from infinipot.eval.metrics import needed
    from infinipot.eval.tasks import longbench as task

    needed({task.tasks()[row.task].metric for rows in sets.values() for row in rows})


def check_against(sweep: Sweep, against: str | None) -> None:
    labels = [method.label for method in sweep.methods]
    if against is not None and against not in labels:
        raise BadUse(f"--against {against} is not one of the policies: {', '.join(labels)}")


def prepare_protocol(options: CommandOptions, model: str, out: Path, protocol: str | None) -> Sweep:
    """`prepare`, with the methods and the catalyst of a protocol."""
    if protocol is None:
        return prepare(options, model, out, "infinipot")
    from infinipot.checks import known
    from infinipot.config import PotConfig
    from infinipot.eval.protocol import PROTOCOLS, arranged, table_1

    known("protocol", protocol, PROTOCOLS)
    default = table_1(options["pot_size"] or PotConfig.pot_size)
    sweep = prepare(options, model, out, default)
    sweep.methods = arranged(sweep.methods, base_options(options))
    return sweep


@evaluation.command("longbench", epilog=METHODS + EPILOG)
@takes(POT, SWEEP, COMMON)
def longbench(
    model: Model,
    options: CommandOptions,
    out: Out,
    data: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help=LONGBENCH),
    ] = None,
    style: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Rows in LongBench's style: reported apart, never as LongBench.",
        ),
    ] = None,
    tasks: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Only these tasks, as in qasper,trec. [default: all]"),
    ] = None,
    half: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="even or odd: only the rows with such a number, from 0."),
    ] = None,
    max_length: Annotated[
        int | None,
        typer.Option(
            parser=size_from(2),
            metavar="N",
            help="Longest prompt for policy full; its middle is cut out. "
            "[default: the model's window]",
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="POLICY", help="Compare the others with this one. [default: the first policy]"
        ),
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="paper: as in its Table 1. The catalyst is the question in question answering, "
            "and general in other tasks; without --policy, the methods are those of the table.",
        ),
    ] = None,
    json: Json = False,
) -> int:
    """LongBench with its own prompts and metrics: the table, differences with intervals, prediction
    files in its format."""
    need_folder(data, style)
    if half not in (None, "even", "odd"):
        raise BadUse(f"--half {half} is not allowed: it must be even or odd")
    sweep = prepare_protocol(options, model, out, protocol)
    refuse_system(options)
    sets = rows(data, style, tasks)
    check_metrics(sets)
    check_against(sweep, against)
    from infinipot.eval import scores
    from infinipot.eval.tasks import longbench as task

    units = task.plan(
        sweep.model,
        sweep.methods,
        list(sets.items()),
        limit=options["limit"],
        half=half,
        max_length=max_length,
    )
    if not units:
        raise BadUse(f"there are no rows with {half} numbers")
    records = sweep.run(units, task, "longbench")
    need_results(records)
    text, files = scores.write(records, out, against)
    show(records, text, [*files, scores.predictions(records, sets, out)], json)
    return 0


@evaluation.command("perplexity", epilog=METHODS + EPILOG)
@takes(POT, SWEEP, COMMON)
def perplexity(
    model: Model,
    options: CommandOptions,
    out: Out,
    file: Annotated[
        list[Path],
        typer.Option(
            "-f",
            "--file",
            metavar="FILE",
            help="A text, also .gz; repeatable.",
            show_default=False,
        ),
    ],
    tokens: Annotated[
        str | None,
        typer.Option(metavar="N", help="Read this many tokens, as in 100k. [default: all]"),
    ] = None,
    every: Annotated[
        int,
        typer.Option(
            parser=size_from(1),
            metavar="N",
            help="Number of tokens whose mean loss is a point of the figure.",
        ),
    ] = 1024,
    json: Json = False,
) -> int:
    """How well a text of any length is predicted while it is read through a pot. There is no
    question."""
    for path in file:
        if not path.is_file():
            raise BadUse(f"there is no file {path}")
        if path.suffix != ".gz":
            check_file(str(path))
    count = None
    if tokens is not None:
        count = size(tokens)
    sweep = prepare(options, model, out, "full,streaming,infinipot", question=False)
    refuse_system(options)
    from infinipot.eval.tasks import perplexity as task
    from infinipot.optional import EVAL, need

    need("matplotlib", "the figure", EVAL)
    units = task.plan(sweep.model, sweep.methods, file, count, every)
    records = sweep.run(units, task, "perplexity", options["limit"])
    need_results(records)
    text, files = task.write(records, out)
    show(records, text, files, json)
    return 0


@evaluation.command("lm", epilog=METHODS + EPILOG)
@takes(POT, SWEEP, COMMON)
def lm(
    model: Model,
    options: CommandOptions,
    out: Out,
    tasks: Annotated[
        str,
        typer.Option(
            metavar="LIST",
            help="Tasks or groups of lm-evaluation-harness, as in ruler,babilong.",
            show_default=False,
        ),
    ],
    fewshot: Annotated[
        int | None,
        typer.Option(
            parser=size_from(0),
            metavar="N",
            help="Examples before each question. [default: the task's]",
        ),
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="RULER: tokens of its texts, as in 4k,16k."),
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Put the model's chat template around prompts.")
    ] = False,
    batch: Annotated[
        int, typer.Option(parser=size_from(1), metavar="N", help="Answers decoded together.")
    ] = 1,
    include: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Tasks of your own, in the harness's format."),
    ] = None,
    json: Json = False,
) -> int:
    """Tasks of lm-evaluation-harness (RULER, BABILong, ...) in bounded memory. The end of a prompt,
    its question, is the catalyst."""
    if include is not None and not include.is_dir():
        raise BadUse(f"there is no folder {include}")
    sweep = prepare(options, model, out, "infinipot")
    refuse_system(options)
    from infinipot.eval.tasks import lm_harness as task
    from infinipot.optional import LM, need

    need("lm_eval", "these tasks", LM)
    sizes = tuple(size(text) for text in split(lengths or ""))
    names = split(tasks)
    task.check(names, include)
    units = task.plan(
        sweep.model,
        sweep.methods,
        names,
        fewshot=fewshot,
        limit=options["limit"],
        lengths=sizes,
        chat=chat,
        batch=batch,
        include=include,
    )
    records = sweep.run(units, task, "lm")
    need_results(records)
    text, files = task.write(records, out)
    show(records, text, files, json)
    return 0
