"""infinipot study: the paper's analyses, each a table and a figure."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from infinipot.cli.app import EPILOG, Model, app
from infinipot.cli.console import BadUse, Failure
from infinipot.cli.options import COMMON, POT, Given, takes
from infinipot.cli.sweep import SWEEP, Bench, Json, Out, bench, listed, share, show, size

# ruff: noqa: UP045 (typer reads the annotations when it runs, on Python 3.10 too)

NAMES = "catalyst, novelty, memory (LongBench rows); ablation (needles); kept (what is kept and where); hops (chains of facts across cycles)."


@app.command("study", epilog=EPILOG)
@takes(POT, SWEEP, COMMON)
def study(
    name: Annotated[str, typer.Argument(metavar="NAME", help=NAMES, show_default=False)],
    model: Model,
    given: Given,
    out: Out,
    data: Annotated[
        Optional[Path], typer.Option(metavar="FOLDER", help="LongBench's own .jsonl files.")
    ] = None,
    style: Annotated[
        Optional[Path],
        typer.Option(metavar="FOLDER", help="Rows made in LongBench's image, reported apart."),
    ] = None,
    tasks: Annotated[
        Optional[str], typer.Option(metavar="LIST", help="Only these tasks of LongBench.")
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
        int, typer.Option(min=1, metavar="N", help="ablation, hops: texts for every cell.")
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
    from infinipot.checks import known
    from infinipot.eval.studies import PROMPTS, STUDIES
    from infinipot.optional import EVAL, need

    known("study", name, STUDIES)
    need("matplotlib", "the figure", EVAL)
    plan = STUDIES[name]
    if given["policy"] and plan.kind not in ("kept", "hops"):
        raise BadUse(f"study {name} has methods of its own: leave --policy out")
    table = bench(given, model, out, plan.policies, prompts=PROMPTS)
    options: dict[str, Any] = {
        "haystack": haystack,
        "lengths": [size(text) for text in listed(lengths)],
        "trials": trials,
    }
    if plan.kind in ("longbench", "kept"):
        sets = rows(data, style, listed(tasks) if tasks else None)
        return on_rows(name, table, sets, out, json)
    if plan.kind == "needle":
        from infinipot.eval import report
        from infinipot.eval.tasks import needle as test

        units: list[Any] = test.plan(
            table.model,
            table.methods,
            kind="number",
            depths=[share(text) for text in listed(depths)],
            **options,
        )
        records = table.run(units, test.NAME, test.KEY, name, given["limit"])
        write = report.write
    else:
        from infinipot.eval.tasks import hops as chains

        units = chains.plan(
            table.model,
            table.methods,
            hops=[size_or_zero(text) for text in listed(hops)],
            **options,
        )
        records = table.run(units, chains.NAME, chains.KEY, name, given["limit"])
        write = chains.write
    if not records:
        raise Failure("there is no result: memory sufficed for none of the readings")
    text, files = write(records, out)
    show(records, text, files, json)
    return 0


def size_or_zero(text: str) -> int:
    if text == "0":
        return 0
    return size(text)


def rows(data: Path | None, style: Path | None, tasks: list[str] | None) -> dict[str, list[Any]]:
    if data is None and style is None:
        raise BadUse(
            "no rows: give the folder of LongBench's files with --data, or of others with --style"
        )
    from infinipot.eval.tasks import longbench as test

    return {
        kind: test.read_rows(folder, tasks)
        for kind, folder in ((test.GENUINE, data), (test.STYLE, style))
        if folder is not None
    }


def on_rows(name: str, table: Bench, sets: dict[str, list[Any]], out: Path, json: bool) -> int:
    """The studies that read LongBench rows."""
    from infinipot.eval import scores, studies
    from infinipot.eval.metrics import needed
    from infinipot.eval.tasks import kept, longbench

    limit = table.given["limit"]
    if studies.STUDIES[name].kind == "kept":
        if len(sets) > 1:
            raise BadUse("kept reads one set of rows: give --data or --style")
        units: list[Any] = kept.plan(table.model, table.methods, next(iter(sets.values())), limit)
        records = table.run(units, kept.NAME, kept.KEY, name)
    else:
        needed({longbench.tasks()[row.task].metric for some in sets.values() for row in some})
        units = longbench.plan(table.model, table.methods, list(sets.items()), limit=limit)
        records = table.run(units, longbench.NAME, longbench.KEY, name)
    if not records:
        raise Failure("there is no result: memory sufficed for none of the rows")
    if studies.STUDIES[name].kind == "kept":
        text, files = kept.write(records, out)
    else:
        text, files = scores.write(records, out, studies.STUDIES[name].against)
        files += studies.figure(name, records, out)
    show(records, text, files, json)
    return 0
