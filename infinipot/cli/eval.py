"""infinipot eval: benchmarks that others have made."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from infinipot.cli.app import EPILOG, Model, app
from infinipot.cli.console import BadUse, Failure
from infinipot.cli.options import COMMON, POT, Given, takes
from infinipot.cli.sweep import METHODS, SWEEP, Json, Out, bench, listed, show, size

# ruff: noqa: UP045 (typer reads the annotations when it runs, on Python 3.10 too)

evaluation = typer.Typer(
    help="Benchmarks: LongBench, perplexity over a long text, and whatever lm-evaluation-harness has."
)
app.add_typer(evaluation, name="eval")


@evaluation.command("longbench", epilog=METHODS + EPILOG)
@takes(POT, SWEEP, COMMON)
def longbench(
    model: Model,
    given: Given,
    out: Out,
    data: Annotated[
        Optional[Path],
        typer.Option(metavar="FOLDER", help="LongBench's own .jsonl files (also .gz)."),
    ] = None,
    style: Annotated[
        Optional[Path],
        typer.Option(
            metavar="FOLDER",
            help="Rows made in LongBench's image: reported apart, never as LongBench.",
        ),
    ] = None,
    tasks: Annotated[
        Optional[str],
        typer.Option(
            metavar="LIST", help="Only these tasks, as in qasper,trec. [default: all there are]"
        ),
    ] = None,
    half: Annotated[
        Optional[str],
        typer.Option(metavar="NAME", help="even or odd: only the rows with such a number, from 0."),
    ] = None,
    max_length: Annotated[
        Optional[int],
        typer.Option(
            min=2,
            metavar="N",
            help="Longest prompt for policy full; its middle is cut out. [default: the model's window]",
        ),
    ] = None,
    against: Annotated[
        Optional[str],
        typer.Option(
            metavar="POLICY", help="What others are compared with. [default: the first policy]"
        ),
    ] = None,
    json: Json = False,
) -> int:
    """LongBench with its own prompts and metrics: the table, differences with intervals, prediction
    files in its format."""
    if data is None and style is None:
        raise BadUse(
            "no rows: give the folder of LongBench's files with --data, or of others with --style"
        )
    if half not in (None, "even", "odd"):
        raise BadUse(f"--half {half} is not allowed: it must be even or odd")
    table = bench(given, model, out, "infinipot")
    from infinipot.eval import scores
    from infinipot.eval.metrics import needed
    from infinipot.eval.tasks import longbench as test

    if tasks:
        wanted = listed(tasks)
    else:
        wanted = None
    sets = {
        kind: test.read_rows(folder, wanted)
        for kind, folder in ((test.GENUINE, data), (test.STYLE, style))
        if folder is not None
    }
    needed({test.tasks()[row.task].metric for rows in sets.values() for row in rows})
    if against is not None and against not in (method.label for method in table.methods):
        raise BadUse(
            f"--against {against} is not among the policies given: {', '.join(method.label for method in table.methods)}"
        )
    units = test.plan(
        table.model,
        table.methods,
        list(sets.items()),
        limit=given["limit"],
        half=half,
        max_length=max_length,
    )
    if not units:
        raise BadUse(f"there are no rows with {half} numbers")
    records = table.run(units, test.NAME, test.KEY, "longbench")
    if not records:
        raise Failure("there is no result: memory sufficed for none of the rows")
    text, files = scores.write(records, out, against)
    show(records, text, [*files, scores.predictions(records, sets, out)], json)
    return 0


@evaluation.command("perplexity", epilog=METHODS + EPILOG)
@takes(POT, SWEEP, COMMON)
def perplexity(
    model: Model,
    given: Given,
    out: Out,
    file: Annotated[list[Path], typer.Option("-f", "--file", metavar="FILE", help="A text, also .gz; may be given several times.",
                                             show_default=False)],
    tokens: Annotated[Optional[str], typer.Option(metavar="N", help="Read so many tokens, as in 100k. [default: all]")] = None,
    every: Annotated[int, typer.Option(min=1, metavar="N", help="Tokens whose losses are averaged for a point of the figure.")] = 1024,
    json: Json = False,
) -> int:  # fmt: skip
    """How well a text of any length is predicted while it is read through a pot. There is no
    question: the catalyst is general."""
    for path in file:
        if not path.is_file():
            raise BadUse(f"there is no file {path}")
    if tokens is None:
        count = None
    else:
        count = size(tokens)
    table = bench(given, model, out, "full,streaming,infinipot", asked=False)
    from infinipot.eval.tasks import perplexity as test
    from infinipot.optional import EVAL, need

    need("matplotlib", "the figure", EVAL)
    units = test.plan(table.model, table.methods, file, count, every)
    records = table.run(units, test.NAME, test.KEY, "perplexity", given["limit"])
    if not records:
        raise Failure("there is no result: memory sufficed for none of the readings")
    text, files = test.write(records, out)
    show(records, text, files, json)
    return 0


@evaluation.command("lm", epilog=METHODS + EPILOG)
@takes(POT, SWEEP, COMMON)
def lm(
    model: Model,
    given: Given,
    out: Out,
    tasks: Annotated[str, typer.Option(metavar="LIST", help="Tasks or groups of lm-evaluation-harness, as in ruler,babilong.",
                                       show_default=False)],
    fewshot: Annotated[Optional[int], typer.Option(min=0, metavar="N", help="Examples before each question. [default: the task's]")] = None,
    lengths: Annotated[Optional[str], typer.Option(metavar="LIST", help="RULER: tokens of its texts, as in 4k,16k.")] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Put the model's chat template around prompts.")] = False,
    batch: Annotated[int, typer.Option(min=1, metavar="N", help="Answers decoded together.")] = 1,
    include: Annotated[Optional[Path], typer.Option(metavar="FOLDER", help="Tasks of your own, as the harness describes them.")] = None,
    json: Json = False,
) -> int:  # fmt: skip
    """Tasks of lm-evaluation-harness (RULER, BABILong, ...) in bounded memory. The end of a prompt,
    its question, is the catalyst."""
    if include is not None and not include.is_dir():
        raise BadUse(f"there is no folder {include}")
    table = bench(given, model, out, "infinipot")
    from infinipot.eval.tasks import lm_harness
    from infinipot.optional import LM, need

    need("lm_eval", "these tasks", LM)
    sizes = tuple(size(text) for text in listed(lengths or ""))
    lm_harness.check(listed(tasks), include)
    options = {
        "fewshot": fewshot,
        "limit": given["limit"],
        "lengths": sizes,
        "chat": chat,
        "batch": batch,
        "include": include,
    }
    units = lm_harness.plan(table.model, table.methods, listed(tasks), **options)
    records = table.run(units, lm_harness.NAME, lm_harness.KEY, "lm")
    if not records:
        raise Failure("there is no result: memory sufficed for none of the tasks")
    text, files = lm_harness.write(records, out)
    show(records, text, files, json)
    return 0
