"""What needle, eval, inspect and study share: their flags, the check of these, and a run."""

from __future__ import annotations

import dataclasses
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infinipot.cli import parsers
from infinipot.cli.command_options import CommandOptions
from infinipot.cli.console import BadUse, Failure, Stopped, doing, interrupts, put, say, silence
from infinipot.cli.option import option
from infinipot.cli.policy_names import search_current_folder
from infinipot.cli.progress import SweepProgress
from infinipot.cli.tables import narrowed
from infinipot.text.json_text import json_text

if TYPE_CHECKING:
    from infinipot.eval.methods import Method
    from infinipot.eval.results import Record, Results

METHODS = (
    "--policy takes several, separated by commas. Each may have options of its own after colons: "
    "full,truncate,infinipot:novelty=0:pool=13. "
    "The catalyst is the question unless --catalyst says otherwise.\n\n"
)
SWEEP = (
    option(
        "shard",
        str,
        "Only the i-th of n parts, as i/n; all parts write into the same folder.",
    ),
    option("limit", int, "At most this many: rows of a task, else readings."),
    option(
        "workers",
        int,
        "Processes, each with the model; on several GPUs they take turns. [default: 1]",
    ),
    option("ray", str, "Spread the work over a Ray cluster: its address, or local."),
)
Out = Annotated[
    Path,
    typer.Option(
        "-o",
        "--out",
        metavar="FOLDER",
        help="Where results go; finished readings are not repeated.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the results as JSON instead of a table.")]


def size(text: str) -> int:
    """`4096`, `4k`, `1m` -> tokens; k is 1,024, m is 1,024 k."""
    try:
        return parsers.size_from(1)(text)
    except typer.BadParameter:
        raise BadUse(f"{text!r} is no number of tokens: write 4096, 4k or 1m") from None


def share(text: str) -> float:
    """`0.5` -> a depth in a text."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise BadUse(
            f"{text!r} is no depth: "
            "write numbers from 0 (the beginning) to 1 (the end), as in 0.1,0.5,0.9"
        )
    return value


def split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


@dataclasses.dataclass
class Sweep:
    """The model, the methods and the folder of a command that measures."""

    model: Any
    methods: list[Method]
    options: CommandOptions
    out: Path
    kept: list[Any] = dataclasses.field(default_factory=list)
    """The model, once it is loaded, for commands with several sweeps."""

    def run(
        self, units: list[Any], task: Any, title: str, limit: int | None = None
    ) -> list[Record]:
        """Do the units that have no result yet. Returns the records of all units with a result.

        task: the module of the evaluation, with NAME and KEY. title: its name in messages.
        """
        from infinipot.eval.about import note
        from infinipot.eval.results import Results, identity
        from infinipot.eval.runner import shard_of

        shard = shard_of(self.options["shard"] or "1/1")
        results = Results(self.out, task.NAME, task.KEY, shard)
        progress = SweepProgress(title, self.options.quiet)
        failures = self._sweep(units, results, progress, shard=shard, limit=limit)
        note(self.out, self.model, sys.argv[1:])
        for failure in failures:
            say(f"left out: {failure}")
        plan = {identity(record, task.KEY) for unit in units for record in unit.keys()}  # noqa: SIM118 (a method)
        records = [record for record in results.all() if identity(record, task.KEY) in plan]
        if failures and not records:
            raise Failure(f"nothing could be measured; the first reason: {failures[0]}")
        return records

    def _sweep(
        self, units: list[Any], results: Results, progress: SweepProgress, **part: Any
    ) -> list[str]:
        """part: the shard and the limit. Returns the units that failed, and why."""
        from infinipot.eval.runner import sweep

        place = {"workers": self.options["workers"] or 1, "ray": self.options["ray"]}
        try:
            with interrupts.gently("stopping after this reading (Ctrl-C again leaves at once)"):
                return sweep(
                    units, results, self.model, progress=progress, kept=self.kept, **place, **part
                )
        except Stopped:
            progress.close()
            raise Stopped(
                f"stopped; {len(results.done):,} results are in {results.path}, "
                "and the same command goes on from there"
            ) from None
        finally:
            progress.close()


def prepare(
    options: CommandOptions,
    model: str,
    out: Path,
    default: str,
    *,
    question: bool = True,
    prompts: Mapping[str, str] | None = None,
) -> Sweep:
    """Check the command line, as far as possible without the model.

    default: the policies without --policy. question: whether the task asks questions. prompts:
    catalysts by name that only this study uses.
    """
    if out.exists() and not out.is_dir():
        raise BadUse(f"cannot write into {out}: it is a file; give a folder")
    with doing("starting", options.quiet):
        from infinipot.eval.methods import methods
        from infinipot.eval.runner import Model as EvalModel

        labels = options["policy"] or default
        search_current_folder(labels)
        chosen = methods(labels, base_options(options), question, options["preset"], prompts)
        options.check_use([method.policy for method in chosen])
        eval_model = EvalModel(model, **options.loading)
        _ = eval_model.precision  # refuses devices, dtypes and weights that do not exist
        if not options["debug"]:
            silence(options.quiet)
    workers = options["workers"]
    if workers is not None and workers < 1:
        raise BadUse(f"--workers {workers} is not allowed: it must be at least 1")
    for name in ("tensor_parallel", "spread"):
        if options[name] and ((workers or 1) > 1 or options["ray"]):
            raise BadUse(f"{options.origins[name]} takes all GPUs: leave out --workers and --ray")
    refuse_forms(options)
    return Sweep(eval_model, chosen, options, out)


def base_options(options: CommandOptions) -> dict[str, Any]:
    """The pot's options for all methods. Those of the preset come later: a method may have another
    preset."""
    preset = options.origins.get("preset")
    return {
        name: value
        for name, value in options.pot.items()
        if name != "policy" and options.origins[name] != preset
    }


def refuse_forms(options: CommandOptions) -> None:
    """Refuse options that would change how an evaluation puts its texts."""
    if options["raw"]:
        raise BadUse(
            "--raw is not possible here: questions stand in the model's chat template, "
            "as its users ask them"
        )
    if options["special_tokens"]:
        raise BadUse(
            "--special-tokens is not possible here: special tokens in the texts of an evaluation "
            "are text"
        )


def refuse_system(options: CommandOptions) -> None:
    if options["system"]:
        raise BadUse(
            "--system is not possible here: the prompts around the texts belong to this evaluation"
        )


def need_results(records: list[Record]) -> None:
    if not records:
        raise Failure("no results: every run ran out of memory")


def show(records: list[Record], text: str, files: list[Path], json: bool) -> None:
    """Print the table, or the records as JSON, and name the files. A terminal gets tables that fit."""
    if json:
        put("".join(json_text(record) + "\n" for record in records))
    elif sys.stdout.isatty():
        put(narrowed(text.rstrip("\n"), shutil.get_terminal_size().columns))
    else:
        put(text.rstrip("\n") + "\n")
    if files:
        say("written: " + ", ".join(str(path) for path in files))
