"""infinipot distill"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from infinipot.cli.app import Model, SavedPot, TextFiles, app
from infinipot.cli.command_options import CommandOptions, takes
from infinipot.cli.options import COMMON, POT

NewPot = Annotated[
    Path,
    typer.Option(
        "-o", "--output", metavar="FILE", help="Where to save the pot.", show_default=False
    ),
]
Question = Annotated[
    str | None,
    typer.Option(
        "-p", "--prompt", metavar="TEXT", help="A question to keep in mind while reading."
    ),
]


@app.command("distill")
@takes(POT, COMMON)
def distill(
    model: Model,
    options: CommandOptions,
    output: NewPot,
    file: TextFiles = None,
    prompt: Question = None,
    pot: SavedPot = None,
) -> int:
    """Read a text and save the pot, for questions later (generate --pot)."""
    from infinipot.cli.session import open_session, prepare, read, report
    from infinipot.cli.source import need_source

    job = prepare(options, source=need_source(file), question=prompt, pot=pot, save=output)
    session = open_session(job, model)
    read(job, session)
    report(job, session, f"read {job.read_tps:,.0f} tok/s")
    return 0
