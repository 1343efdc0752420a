"""The command line. Everything heavy is imported inside the commands, so that help comes at once."""

from __future__ import annotations

import logging
import os
import sys
import traceback

from infinipot.cli import eval as _eval  # noqa: F401  (its commands; those of evaluate come with it)
from infinipot.cli import study as _study  # noqa: F401
from infinipot.cli.app import app
from infinipot.cli.console import BadUse, ClosedOutput, Failure, Stopped, interrupts, say
from infinipot.cli.options import origin


def main(args: list[str] | None = None) -> int:
    """Run a command line, sys.argv by default. Returns the exit code; errors are one line on
    stderr."""
    if args is None:
        args = sys.argv[1:]
    else:
        args = args
    debug = "--debug" in args
    if not debug:
        hush()
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    with interrupts:
        try:
            code = app(args or ["--help"], prog_name="infinipot", standalone_mode=False)
            sys.stdout.flush()
            return int(code or 0)
        except (ClosedOutput, BrokenPipeError):
            # what is still buffered goes nowhere, quietly
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            return 141
        except Exception as problem:
            if debug:
                traceback.print_exc()
            line, code = explained(problem)
            say(line)
            return code


TORCHAO = {
    "torchao": ("Failed to load ", "Skipping import of cpp extensions"),
    "torch.utils._pytree": ("Calling register_constant() on Enum subclasses",),
}
"""Logger -> what torchao, where it is installed, has printed whenever transformers imports it:
about its libraries, and its use of torch."""


def not_from_torchao(record: logging.LogRecord) -> bool:
    return not any(words in record.getMessage() for words in TORCHAO[record.name])


def hush() -> None:
    """No bars of other libraries, and no torchao's own warnings; works only before they are
    imported."""
    os.environ.setdefault("TQDM_DISABLE", "1")
    for name in TORCHAO:
        logging.getLogger(name).addFilter(not_from_torchao)


def explained(problem: Exception) -> tuple[str, int]:
    """One line about what went wrong, and the exit code: 2 if what was given cannot be used, 1 if
    running it failed."""
    if isinstance(problem, Stopped):
        return str(problem), 130
    usage = getattr(problem, "format_message", None)
    if usage is not None:  # click's errors, wherever typer keeps click
        context = getattr(problem, "ctx", None)
        parameter = getattr(problem, "param", None)
        if context and parameter:
            came = origin(context, parameter.name)
        else:
            came = ""
        if came and not came.startswith("--"):
            source = f" (from {came})"
        else:
            source = ""
        return (
            f"{usage().rstrip('.')}{source} (see {getattr(context, 'command_path', 'infinipot')} --help)",
            2,
        )
    text = " ".join(str(problem).split())
    if isinstance(problem, (BadUse, Failure, ValueError)):
        return text, 1 if isinstance(problem, Failure) else 2
    return f"{type(problem).__name__}: {text[:500]} (--debug shows where)", 1


__all__ = ["main"]
