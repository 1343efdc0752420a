"""infinipot plan: which weights, pots and numbers of sessions fit into a memory."""

from __future__ import annotations

import json as writer
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any

import typer

from infinipot.cli.app import Json, Model, app
from infinipot.cli.command_options import CommandOptions, takes
from infinipot.cli.console import BadUse, doing, put, silence
from infinipot.cli.options import COMMON, POT

UNITS = {"MB": 10**6, "GB": 10**9, "MIB": 1 << 20, "GIB": 1 << 30}
LARGEST = 1 << 60
POT_SIZES = (512, 1024, 2048, 4096, 8192, 16_384)


def memory_bytes(text: str) -> int:
    """`8GB`, `700 MiB` -> bytes."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) *([kmg]i?b)", text.strip(), re.IGNORECASE)
    unit = UNITS.get(found[2].upper()) if found else None
    size = float(found[1]) * unit if found and unit else 0.0
    if not 1 <= size <= LARGEST:
        raise BadUse(f"--memory {text!r} is not allowed: write 8GB, 700MB, 8GiB or 700MiB")
    return int(size)


@app.command("plan")
@takes(POT, COMMON)
def plan(
    model: Model,
    options: CommandOptions,
    memory: Annotated[
        str,
        typer.Option(
            "--memory", metavar="SIZE", help="The memory: 8GB, 700MiB. Of a GPU, its own."
        ),
    ],
    json: Json = False,
) -> None:
    """Show which weights, pots and numbers of sessions fit into a memory, from the model's config
    alone. --pot-size limits it to one size."""
    size = memory_bytes(memory)
    with doing(f"looking at {model}", options.quiet):
        from infinipot.model.load import best_device, best_dtype, kept_weights

        if not options["debug"]:
            silence(options.quiet)
        device = best_device(options["device"] or "auto")
        weights = kept_weights(model) or options["weights"]
        dtype = best_dtype(options["dtype"] or "auto", device, weights)
        found = reckoned(model, options, device, dtype, weights)
    if json:
        put(writer.dumps(document(found, size)) + "\n")
        return
    for line in table(found, size):
        put(f"{line}\n")
    fitting = best(found, size)
    if fitting is None:
        put("nothing fits: take a smaller model, or more memory\n")
    else:
        put(f"{command(model, options, device, dtype, *fitting)}\n")


def reckoned(model: str, options: CommandOptions, device: Any, dtype: Any, only: str | None) -> Any:
    """The sizes, with weights of all kinds or of one."""
    from infinipot.model.quantizer import kind_of
    from infinipot.server.sizes import config_from, sizes_of

    config = options.config()
    chosen = (config.pot_size,) if options["pot_size"] else POT_SIZES
    kind = kind_of(only) if only else None
    try:
        found = sizes_of(config_from(model), config, dtype, chosen, device)
    except OSError as problem:
        raise BadUse(str(problem)) from problem
    if kind:
        return replace(found, weights={kind: found.weights[kind]})
    return found


def command(
    model: str, options: CommandOptions, device: Any, dtype: Any, kind: str, pot_size: int
) -> str:
    """A command that takes these sizes. What it would take by itself is not named."""
    from infinipot.bench.shapes import SHAPES
    from infinipot.model.load import best_dtype, kept_weights

    words = ["infinipot generate", "MODEL" if model in SHAPES else model]
    quantised = kind if kind.startswith("int") else None
    if quantised and not kept_weights(model):
        words.append(f"--weights {kind}")
    if best_dtype("auto", device, quantised) != dtype:
        words.append(f"--dtype {str(dtype).removeprefix('torch.')}")
    for name in ("device", "pot_dtype"):
        if options[name]:
            words.append(f"--{name.replace('_', '-')} {options[name]}")
    return " ".join((*words, f"--pot-size {pot_size}"))


def document(found: Any, memory: int) -> dict[str, Any]:
    """Everything in bytes, and the sessions by weights and pot."""
    return {
        "memory": memory,
        "weights": found.weights,
        "activations": found.activations,
        "unpacked": found.unpacked,
        "session": {str(size): count for size, count in found.pots.items()},
        "sessions": {
            kind: {str(size): found.sessions(kind, size, memory) for size in found.pots}
            for kind in found.weights
        },
    }


def table(found: Any, memory: int) -> Iterator[str]:
    """The same for people."""
    from infinipot.server.sizes import PROGRAM_BYTES

    yield f"memory      {memory / 1e6:>10,.0f} MB"
    yield f"program     {PROGRAM_BYTES / 1e6:>10,.0f} MB"
    yield f"activations {found.activations / 1e6:>10,.0f} MB"
    if found.unpacked:
        yield f"unpacked    {found.unpacked / 1e6:>10,.0f} MB, for int8 and int4"
    yield ""
    yield f"{'':12}{'weights':>13}   sessions with a pot of"
    yield f"{'':12}{'':>13}" + "".join(f"{size:>9,}" for size in found.pots)
    for kind, weights in found.weights.items():
        counts = [found.sessions(kind, size, memory) for size in found.pots]
        cells = "".join(f"{count or '-':>9}" for count in counts)
        yield f"{kind:12}{weights / 1e6:>10,.0f} MB{cells}"
    cells = "".join(f"{count / 1e6:>9,.0f}" for count in found.pots.values())
    yield f"{'':12}{'MB a session':>13}{cells}"
    yield ""


def best(found: Any, memory: int) -> tuple[str, int] | None:
    """The most exact weights that fit, and the largest pot beside them of those reckoned; None: nothing
    fits."""
    for kind in found.weights:
        fits = [size for size in found.pots if found.sessions(kind, size, memory)]
        if fits:
            return kind, max(fits)
    return None
