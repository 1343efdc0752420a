"""infinipot plot"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from infinipot.cli.app import app
from infinipot.cli.command_options import CommandOptions, takes
from infinipot.cli.console import BadUse, put
from infinipot.cli.options import ALWAYS
from infinipot.cli.sweep import show
from infinipot.optional import extra

Results = Annotated[
    Path,
    typer.Argument(
        metavar="RESULTS",
        help="A folder of needle, eval or study, or the file of bench.",
        show_default=False,
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "-o", "--out", metavar="FOLDER", help="Where tables and figures go. [default: beside]"
    ),
]
ModelName = Annotated[
    str | None,
    typer.Option("--model", metavar="NAME", help="Of bench, this model's newest result."),
]


@app.command("plot")
@takes(ALWAYS)
def plot(
    results: Results, options: CommandOptions, out: Out = None, model: ModelName = None
) -> int:
    """Make tables and figures again from results. Shards are put together."""
    if not results.exists():
        raise BadUse(
            f"there is no {results}: give the folder that --out named, or the file of bench"
        )
    if results.is_file():
        plot_bench(results, model, out)
        return 0
    from infinipot.eval.plot import redraw

    text, files = redraw(results, out or results)
    show([], text, files, False)
    return 0


def plot_bench(results: Path, model: str | None, out: Path | None) -> None:
    try:
        from infinipot.bench import figure
    except ModuleNotFoundError as problem:
        raise BadUse(f"plotting needs {problem.name}: pip install {extra('plot')}") from problem
    document = figure.latest(results, model)
    if out is None:
        stem = results.with_name(f"{results.stem}-{document['model']['name']}")
    else:
        stem = out / results.stem
    folder = stem.absolute().parent
    if not folder.is_dir():
        raise BadUse(f"cannot write {stem}: there is no folder {folder}")
    for path in figure.draw(document, stem):
        put(f"{path}\n")
