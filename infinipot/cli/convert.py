"""infinipot convert: write a model with quantised weights, which then loads in a second or two."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from infinipot.cli.app import Model, app
from infinipot.cli.command_options import CommandOptions, takes
from infinipot.cli.console import BadUse, doing, say, silence
from infinipot.cli.options import COMMON


@app.command("convert")
@takes(COMMON)
def convert(
    model: Model,
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="The new folder.", show_default=False)
    ],
    options: CommandOptions,
) -> None:
    """Write a model with quantised weights into a folder, which then loads in a second or two.
    --weights says how: int8, int4, or auto, the default."""
    from infinipot.model.convert import check_target

    check_target(folder)
    start = time.perf_counter()
    with doing(f"loading {model}", options.quiet):
        if not options["debug"]:
            silence(options.quiet)
        network, tokenizer = loaded(options, model)
    from infinipot.model.convert import save

    with doing(f"writing {folder}", options.quiet):
        size = save(network, tokenizer, folder)
    if not options.quiet:
        say(f"{folder}: {size / 1e6:,.0f} MB of weights, in {time.perf_counter() - start:.0f} s")


def loaded(options: CommandOptions, model: str) -> tuple[Any, Any]:
    """The model with its weights in groups. Refuses one that is quantised in another way."""
    from infinipot.model.groups import weights_in_groups
    from infinipot.model.load import load

    try:
        network, tokenizer = load(model, **{"weights": "auto", **options.loading})
    except OSError as problem:
        raise BadUse(str(problem)) from problem
    if not weights_in_groups(network):
        raise BadUse(
            f"{model} is quantised already, in a way that is not converted: use it as it is"
        )
    return network, tokenizer
