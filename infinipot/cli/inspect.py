"""infinipot inspect"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from infinipot.cli.app import Model, TextFiles, app
from infinipot.cli.command_options import CommandOptions, takes
from infinipot.cli.console import BadUse, check_utf8, doing, say
from infinipot.cli.options import COMMON, POT
from infinipot.cli.parsers import size_from
from infinipot.cli.session import check_writable
from infinipot.cli.source import need_source
from infinipot.cli.sweep import Sweep, prepare

Page = Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="The page.")]
Question = Annotated[
    str | None,
    typer.Option(
        "-p",
        "--prompt",
        metavar="TEXT",
        help="The question, known while reading unless the catalyst is another.",
    ),
]


@app.command("inspect")
@takes(POT, COMMON)
def inspect(
    model: Model,
    options: CommandOptions,
    file: TextFiles = None,
    out: Page = Path("survivors.html"),
    prompt: Question = None,
    max_tokens: Annotated[
        int, typer.Option(parser=size_from(1), metavar="N", help="Most tokens of the answer.")
    ] = 64,
) -> int:
    """Show which tokens survived: a page with the text, shaded by how many layers and heads kept
    each token, and by each of them."""
    check_utf8("--prompt", prompt)
    check_writable("write", out)
    text = whole_text(file)
    sweep = prepare(options, model, out.parent, "infinipot", question=prompt is not None)
    if len(sweep.methods) > 1:
        raise BadUse("a page shows one policy: give one")
    facts = write_page(sweep, text, prompt, max_tokens, out)
    if not options.quiet:
        say(f"{facts}; the page is {out}")
    return 0


def whole_text(file: list[str] | None) -> str:
    source = need_source(file)
    text = "".join(source)
    if source.problem:
        raise BadUse(source.problem)
    return text


def write_page(sweep: Sweep, text: str, question: str | None, max_tokens: int, out: Path) -> str:
    """Read the text and write the page. Returns its facts, in one line."""
    from infinipot.eval.inspect import look, page
    from infinipot.eval.results import write_whole
    from infinipot.eval.runner import Replica

    options = sweep.options
    answer = {"system": options["system"], "max_tokens": max_tokens}
    with doing(f"loading {sweep.model.name}", options.quiet):
        replica = Replica(sweep.model)
    with doing("reading", options.quiet):
        view = look(replica, sweep.model.label, sweep.methods[0], text, question, **answer)
    write_whole(out, page(view))
    return str(view.facts)
