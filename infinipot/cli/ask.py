"""infinipot ask"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from infinipot.checks import EMBEDDED, check_model_name
from infinipot.cli.app import Json, Question, app
from infinipot.cli.command_options import CommandOptions, takes
from infinipot.cli.console import BadUse
from infinipot.cli.generate import Words, only_prompt, respond
from infinipot.cli.options import COMMON, POT, SAMPLING
from infinipot.cli.source import Source, piped, source_of

SavedPot = Annotated[
    Path,
    typer.Argument(
        metavar="POT", help="A saved pot (distill writes one); it stays.", show_default=False
    ),
]
ItsModel = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="MODEL",
        help="The model that filled the pot. It may be left out for smollm2, the embedded one.",
    ),
]


OUTSIDE = tuple(parameter for parameter in POT if parameter.name == "policy")
"""Only for a pot of a policy from another package, which the file names and does not import."""


@app.command("ask")
@takes(OUTSIDE, SAMPLING, COMMON)
def ask(
    pot: SavedPot,
    options: CommandOptions,
    words: Words = None,
    prompt: Question = None,
    model: ItsModel = None,
    json: Json = False,
) -> int:
    """Answer a question from a saved pot. Without PROMPT the question is what is piped in; with
    one, a text that is piped in is read first."""
    from infinipot.cli.session import prepare

    question = only_prompt(prompt, words)
    source = None
    if question is None and piped():
        question = "".join(Source("-")).strip()
    elif question is not None:
        source = source_of(None)
    if not question:
        raise BadUse('nothing is asked: infinipot ask POT "Who hid the letter?"')
    if model is None:
        model = model_of(pot)
    check_model_name(model)
    job = prepare(options, source=source, question=question, pot=pot, save=None)
    return respond(job, model, json)


def model_of(pot: Path) -> str:
    """The embedded model, if it filled the pot. Raises BadUse for the pot of another model."""
    from infinipot.model.load import embedded
    from infinipot.pot_file import describe

    name = describe(pot)["model"]["name"]
    try:
        if name == embedded().name:
            return EMBEDDED
    except FileNotFoundError:  # not installed, so the pot's model is another one
        pass
    raise BadUse(f"{pot} was filled by {name!r}: give this model with --model")
