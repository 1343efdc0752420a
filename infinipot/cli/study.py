"""infinipot study: the paper's analyses, each a table and a figure."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from infinipot.cli.app import Model, app
from infinipot.cli.command_options import CommandOptions, takes
from infinipot.cli.console import BadUse
from infinipot.cli.eval import LONGBENCH, check_metrics, rows
from infinipot.cli.options import COMMON, POT
from infinipot.cli.parsers import size_from
from infinipot.cli.sweep import (
    SWEEP,
    Json,
    Out,
    Sweep,
    need_results,
    prepare,
    refuse_system,
    share,
    show,
    size,
    split,
)

NAMES = (
    "catalyst, novelty, memory (LongBench rows); ablation (needles); "
    "kept (what is kept and where); hops (chains of facts across cycles)."
)
Outcome = tuple[list[Any], str, list[Path]]
"""Records, the table, files."""


@app.command("study")
@takes(POT, SWEEP, COMMON)
def study(
    name: Annotated[str, typer.Argument(metavar="NAME", help=NAMES, show_default=False)],
    model: Model,
    options: CommandOptions,
    out: Out,
    data: Annotated[Path | None, typer.Option(metavar="FOLDER", help=LONGBENCH)] = None,
    style: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Rows in LongBench's style, reported apart."),
    ] = None,
    tasks: Annotated[
        str | None, typer.Option(metavar="LIST", help="Only these tasks of LongBench.")
    ] = None,
    lengths: Annotated[
        str, typer.Option(metavar="LIST", help="ablation, hops: tokens of the texts.")
    ] = "4k,16k",
    depths: Annotated[
        str, typer.Option(metavar="LIST", help="ablation: where the needle stands.")
    ] = "0.1,0.5,0.9",
    hops: Annotated[
        str, typer.Option(metavar="LIST", help="hops: links from the question to the fact.")
    ] = "0,1,2",
    trials: Annotated[
        int,
        typer.Option(
            parser=size_from(1), metavar="N", help="ablation, hops: texts for every cell."
        ),
    ] = 20,
    haystack: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="ablation, hops: filler, essays, a text file or a folder."
        ),
    ] = "essays",
    json: Json = False,
) -> int:
    """One of the paper's studies: its methods on the same texts, a table and a figure. --policy
    gives kept and hops other methods."""
    sweep, kind = prepare_study(name, model, options, out)
    texts: dict[str, Any] = {
        "haystack": haystack,
        "lengths": [size(text) for text in split(lengths)],
        "trials": trials,
    }
    if kind == "longbench":
        outcome = on_rows(name, sweep, rows(data, style, tasks))
    elif kind == "kept":
        outcome = on_kept(name, sweep, rows(data, style, tasks))
    elif kind == "needle":
        outcome = on_needles(name, sweep, depths=[share(text) for text in split(depths)], **texts)
    else:
        outcome = on_hops(name, sweep, hops=[size_or_zero(text) for text in split(hops)], **texts)
    show(*outcome, json)
    return 0


def prepare_study(name: str, model: str, options: CommandOptions, out: Path) -> tuple[Sweep, str]:
    """Check the command line. Returns the sweep and the kind of the study."""
    from infinipot.checks import known
    from infinipot.config import PotConfig
    from infinipot.eval.studies import PROMPTS, STUDIES
    from infinipot.optional import EVAL, need

    known("study", name, STUDIES)
    need("matplotlib", "the figure", EVAL)
    plan = STUDIES[name]
    if options["policy"] and plan.kind not in ("kept", "hops"):
        raise BadUse(f"study {name} has methods of its own: leave --policy out")
    policies = plan.methods(options["pot_size"] or PotConfig.pot_size)
    sweep = prepare(options, model, out, policies, prompts=PROMPTS)
    refuse_system(options)
    return sweep, plan.kind


def size_or_zero(text: str) -> int:
    if text == "0":
        return 0
    return size(text)


def on_rows(name: str, sweep: Sweep, sets: dict[str, list[Any]]) -> Outcome:
    """A study with LongBench's tasks."""
    from infinipot.eval import scores, studies
    from infinipot.eval.tasks import longbench as task

    check_metrics(sets)
    limit = sweep.options["limit"]
    units = task.plan(sweep.model, sweep.methods, list(sets.items()), limit=limit)
    records = sweep.run(units, task, name)
    need_results(records)
    text, files = scores.write(records, sweep.out, studies.STUDIES[name].against)
    return records, text, [*files, *studies.figure(name, records, sweep.out)]


def on_kept(name: str, sweep: Sweep, sets: dict[str, list[Any]]) -> Outcome:
    """Which entries are kept of LongBench's texts."""
    from infinipot.eval.tasks import kept as task

    if len(sets) > 1:
        raise BadUse("kept reads one set of rows: give --data or --style")
    (texts,) = sets.values()
    units = task.plan(sweep.model, sweep.methods, texts, sweep.options["limit"])
    records = sweep.run(units, task, name)
    need_results(records)
    return records, *task.write(records, sweep.out)


def on_needles(name: str, sweep: Sweep, **texts: Any) -> Outcome:
    from infinipot.eval import report
    from infinipot.eval.tasks import needle as task

    units = task.plan(sweep.model, sweep.methods, kind="number", **texts)
    records = sweep.run(units, task, name, sweep.options["limit"])
    need_results(records)
    return records, *report.write(records, sweep.out)


def on_hops(name: str, sweep: Sweep, **texts: Any) -> Outcome:
    from infinipot.eval.tasks import hops as task

    units = task.plan(sweep.model, sweep.methods, **texts)
    records = sweep.run(units, task, name, sweep.options["limit"])
    need_results(records)
    return records, *task.write(records, sweep.out)
