"""The commands. Each reads its options and leaves the work to the files beside this one."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from infinipot.cli.console import BadUse, put
from infinipot.cli.options import COMMON, POT, SAMPLING, SERVED, Given, takes

# ruff: noqa: UP045 (typer reads the annotations when it runs, on Python 3.10 too)

EPILOG = """An option is taken from its flag, else from the environment (INFINIPOT_POT_SIZE=1024), else from --config FILE.yaml
(pot_size: 1024), else it has its default. Answers go to stdout, all else to stderr. Exit codes: 0 done; 1 failed while running; 2 what was
given cannot be used (unknown option or policy, sizes without room, a file or model that is missing or damaged); 130 interrupted; 141 nobody
read the output."""

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="smollm2 (embedded), a Hub id, a folder, or a .gguf file.",
        show_default=False,
    ),
]
File = Annotated[
    Optional[str],
    typer.Option(
        "-f", "--file", metavar="FILE", help="Text to read first, UTF-8 of any length; - is stdin."
    ),
]
Question = Annotated[
    Optional[str], typer.Option("-p", "--prompt", metavar="TEXT", help="The question.")
]
OldPot = Annotated[
    Optional[Path], typer.Option("--pot", metavar="FILE", help="Go on from this saved pot.")
]
NewPot = Annotated[
    Optional[Path],
    typer.Option(
        "--save-pot",
        metavar="FILE",
        help="Save the pot here, after reading and before the question.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]


def show_version(wanted: bool) -> None:
    if wanted:
        from infinipot import __version__

        put(f"infinipot {__version__}\n")
        raise typer.Exit()


@app.callback(epilog=EPILOG)
def root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Read text of any length with a pot of fixed size, and answer from it (InfiniPot, arXiv
    2410.01518)."""


@app.command("generate", epilog=EPILOG)
@takes(POT, SAMPLING, COMMON)
def generate(
    model: Model,
    given: Given,
    file: File = None,
    prompt: Question = None,
    pot: OldPot = None,
    save_pot: NewPot = None,
    json: Json = False,
) -> int:
    """Read a text and answer a question about it."""
    from infinipot.cli import session as run

    if not file and not prompt:
        raise BadUse(
            "nothing to read and nothing to answer: give a text with -f FILE, a question with -p, or both"
        )
    plan = run.plan(given, file=file, question=prompt, pot=pot, save=save_pot)
    session, load_s = run.open_session(plan, model)
    read_tps = run.read(plan, session)
    read_s = session.stats.timings["read_s"]
    said = run.answer(session, prompt, plan.sampling, (lambda piece: None) if json else put)
    put(
        json_module.dumps(
            run.result(plan, session, said, load_s, read_s, read_tps), ensure_ascii=False
        )
        + "\n"
        if json
        else "\n"
    )
    speeds = [f"read {read_tps:,.0f} tok/s"] * bool(read_tps) + [
        f"answered {said.answer_tps:,.1f} tok/s"
    ] * bool(said.answer_tps)
    run.report(plan, session, *speeds)
    if said.stopped:
        return 130
    return 0


@app.command("chat", epilog=EPILOG)
@takes(POT, SAMPLING, COMMON)
def chat(
    model: Model,
    given: Given,
    file: File = None,
    pot: OldPot = None,
    save_pot: Annotated[
        Optional[Path],
        typer.Option(
            "--save-pot",
            metavar="FILE",
            help="Save the pot here, after reading and when the chat ends.",
        ),
    ] = None,
) -> int:
    """Talk, without end, in a pot of fixed size. A line is a message; /help lists what else there
    is."""
    from infinipot.cli import chat
    from infinipot.cli import session as run

    if file == "-":
        raise BadUse(
            "-f - would read the text from stdin, where the messages come from: give a file"
        )
    plan = run.plan(given, file=file, question=None, pot=pot, save=save_pot)
    if plan.config.prefill == "whole":
        raise BadUse(
            "prefill whole distils once for each answer, so a chat has no pot to go on with: leave it out, or ask with generate"
        )
    session, _ = run.open_session(plan, model)
    chat.talk(plan, session)
    return 0


@app.command("distill", epilog=EPILOG)
@takes(POT, COMMON)
def distill(
    model: Model,
    given: Given,
    file: Annotated[
        str,
        typer.Option(
            "-f",
            "--file",
            metavar="FILE",
            help="The text, UTF-8 of any length; - is stdin.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "-o", "--output", metavar="FILE", help="Where the pot is saved.", show_default=False
        ),
    ],
    prompt: Annotated[
        Optional[str],
        typer.Option(
            "-p", "--prompt", metavar="TEXT", help="A question to keep in mind while reading."
        ),
    ] = None,
    pot: OldPot = None,
) -> int:
    """Read a text and save the pot, to be asked later (generate --pot)."""
    from infinipot.cli import session as run

    plan = run.plan(given, file=file, question=prompt, pot=pot, save=output)
    session, _ = run.open_session(plan, model)
    read_tps = run.read(plan, session)
    run.report(plan, session, f"read {read_tps:,.0f} tok/s")
    return 0


@app.command("info")
def info(
    pot: Annotated[Path, typer.Argument(metavar="POT", help="A saved pot.", show_default=False)],
    policy: Annotated[
        Optional[str],
        typer.Option(
            "--policy",
            metavar="PLACE",
            help="The policy of another package that filled it: package.module:Class.",
        ),
    ] = None,
    json: Json = False,
    debug: bool = False,
) -> int:
    """Show what a saved pot says about itself."""
    from infinipot.cli import info as about

    about.pot(pot, policy, json)
    return 0


@app.command("policies")
def policies(
    name: Annotated[
        Optional[str],
        typer.Argument(metavar="NAME", help="Show this one's options.", show_default=False),
    ] = None,
    debug: bool = False,
) -> int:
    """List the policies: how the entries that survive are chosen. With a name, or
    package.module:Class, its options."""
    from infinipot.cli import info as about

    about.policies() if name is None else about.policy(name)
    return 0


@app.command("serve", epilog=EPILOG)
@takes(SERVED, COMMON)
def serve(
    model: Model,
    given: Given,
    host: Annotated[
        str, typer.Option("--host", metavar="NAME", help="Where to listen; 0.0.0.0 is everywhere.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", metavar="N", help="0 takes a free one.")] = 8000,
    api_key: Annotated[
        Optional[str],
        typer.Option(
            "--api-key",
            metavar="KEY",
            envvar="INFINIPOT_API_KEY",
            help="Ask for this key.",
            show_envvar=False,
        ),
    ] = None,
    pot_dir: Annotated[
        Optional[Path],
        typer.Option(
            "--pot-dir",
            metavar="FOLDER",
            help="Where pots go that have no place in memory, and come back from.",
        ),
    ] = None,
    max_sessions: Annotated[
        int,
        typer.Option(
            "--max-sessions", metavar="N", help="Pots in memory, those in use among them."
        ),
    ] = 8,
    queue: Annotated[
        int, typer.Option("--queue", metavar="N", help="Requests that may wait; more are refused.")
    ] = 64,
    max_body_mb: Annotated[
        int,
        typer.Option(
            "--max-body-mb", metavar="N", help="Largest request; streamed texts have no limit."
        ),
    ] = 64,
    most_tokens: Annotated[
        int,
        typer.Option(
            "--max-tokens-limit", metavar="N", help="Longest answer that may be asked for."
        ),
    ] = 1 << 17,
    patience: Annotated[
        float,
        typer.Option(
            "--client-timeout",
            metavar="S",
            help="How long a client may send nothing of its request, or fetch nothing of its answer.",
        ),
    ] = 60,
    allowed_host: Annotated[
        Optional[list[str]],
        typer.Option(
            "--allowed-host",
            metavar="NAME",
            help="Without a key: also answer when asked under this name; repeatable, * is any.",
        ),
    ] = None,
    ray: Annotated[
        Optional[str],
        typer.Option(
            "--ray",
            metavar="ADDRESS",
            help="Serve from a Ray cluster: its address, or local for one on this machine.",
        ),
    ] = None,
    replicas: Annotated[
        Optional[int],
        typer.Option(
            "--replicas",
            metavar="N",
            help="With --ray: how many times the model is loaded. [default: 1]",
        ),
    ] = None,
    max_replicas: Annotated[
        Optional[int],
        typer.Option(
            "--max-replicas",
            metavar="N",
            help="With --ray: as many as are needed, from --replicas up to this.",
        ),
    ] = None,
) -> int:
    """Serve the OpenAI API, and a web page, with every conversation in a pot of fixed size."""
    from infinipot.cli import serve

    cluster = {"ray": ray, "replicas": replicas, "max_replicas": max_replicas}
    options: dict[str, Any] = {
        "pot_dir": pot_dir,
        "max_sessions": max_sessions,
        "queue": queue,
        "most_tokens": most_tokens,
    }
    limits: dict[str, Any] = {
        "max_body_mb": max_body_mb,
        "patience_s": patience,
        "allowed_hosts": tuple(allowed_host or ()),
    }
    serve.run(
        given, model, host=host, port=port, api_key=api_key, cluster=cluster, **limits, **options
    )
    return 0


@app.command("bench", epilog=EPILOG)
@takes(POT, COMMON)
def bench(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="As for generate, or a shape with random weights: llama-8b-shape.",
            show_default=False,
        ),
    ],
    given: Given,
    lengths: Annotated[
        str,
        typer.Option("--lengths", metavar="N,N", help="Tokens to read; 8k is 8,192, 1m 1,048,576."),
    ] = "8k,32k",
    compare: Annotated[
        Optional[str],
        typer.Option("--compare", metavar="stock", help="Measure stock transformers beside."),
    ] = None,
    batch: Annotated[
        int,
        typer.Option(
            "--batch", metavar="N", min=1, help="Answers decoded together, beside one alone."
        ),
    ] = 8,
    decode_tokens: Annotated[
        int, typer.Option("--decode-tokens", metavar="N", min=8, help="Tokens of each answer.")
    ] = 64,
    rounds: Annotated[
        int,
        typer.Option(
            "--rounds", metavar="N", min=1, help="Times each row is measured; its medians count."
        ),
    ] = 3,
    patience: Annotated[
        float,
        typer.Option(
            "--patience", metavar="S", help="A row that took longer than this is not repeated."
        ),
    ] = 60,
    spread: Annotated[
        bool, typer.Option("--spread", help="Share a shape's layers out over all GPUs.")
    ] = False,
    out: Annotated[
        Optional[Path],
        typer.Option(
            "--out",
            metavar="FILE",
            help="Add the result to this file. [default: benchmarks/results/bench.jsonl, if it can be]",
        ),
    ] = None,
) -> int:
    """Measure speed and memory of reading and answering in a pot."""
    if compare not in (None, "stock"):
        raise BadUse(
            f"--compare {compare} is not known: stock is; kvpress, which needs another transformers, has benchmarks/kvpress_beside.py"
        )
    from infinipot.cli import bench

    tokens = bench.lengths(lengths)
    from infinipot.bench.comparison import Task

    task = Task(
        lengths=tokens,
        stock=compare == "stock",
        batch=batch,
        tokens=decode_tokens,
        rounds=rounds,
        patience_s=patience,
    )
    bench.run(given, model, task, out, spread)
    return 0
