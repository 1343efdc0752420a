"""The command line. Commands import everything heavy themselves, so that help comes at once."""

from __future__ import annotations

import logging
import os
import re
import sys
import traceback
from typing import Any

from infinipot.cli.app import HELP, app
from infinipot.cli.command_options import origin
from infinipot.cli.console import BadUse, ClosedOutput, Failure, Stopped, interrupts, say, traces

# isort: off
from infinipot.cli import generate, chat, distill, ask, info, policies, serve, bench  # noqa: F401
from infinipot.cli import needle, compare, plot, inspect, study, eval  # noqa: F401
from infinipot.cli import documents, convert, plan  # noqa: F401
# isort: on
# The imports add the commands to the app. Help lists them in this order.


COMPLETION = "_INFINIPOT_COMPLETE"
"""The variable by which a shell asks how a line may go on."""


def main(args: list[str] | None = None) -> int:
    """Run a command line, sys.argv by default. Returns the exit code. An error is one line on
    stderr."""
    if args is None:
        args = sys.argv[1:]
    traces.wanted = "--debug" in args
    if not traces.wanted:
        hush()
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    with interrupts:
        try:
            code = run(args or ["--help"])
            sys.stdout.flush()
            return int(code or 0)
        except (ClosedOutput, BrokenPipeError):
            # discard what is still buffered
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            return 141
        except Exception as problem:
            if traces.wanted:
                traceback.print_exc()
            line, code = explain(problem, args)
            say(line)
            return code


def run(args: list[str]) -> int | None:
    """Run a command. Only that command is built, of a group that is asked for help only its names: the
    options of all commands take twice as long as the rest."""
    names = app.names_in(args)
    rest = args[len(names) :]
    part = app.part(names)
    inside = len(part.registered_commands) + len(part.registered_groups)
    if COMPLETION in os.environ or (inside > 1 and not (len(rest) == 1 and rest[0] in HELP)):
        return app(args, prog_name="infinipot", standalone_mode=False)
    prog = " ".join(["infinipot", *names])
    return part(rest, prog_name=prog, standalone_mode=False, obj=app)


TORCHAO = {
    "torchao": ("Failed to load ", "Skipping import of cpp extensions"),
    "torch.utils._pytree": ("Calling register_constant() on Enum subclasses",),
}
"""Messages by logger that torchao, if it is installed, prints when transformers imports it."""


def not_from_torchao(record: logging.LogRecord) -> bool:
    return not any(words in record.getMessage() for words in TORCHAO[record.name])


def hush() -> None:
    """Hide other libraries' bars and torchao's warnings. Works only before they are imported."""
    os.environ.setdefault("TQDM_DISABLE", "1")
    for name in TORCHAO:
        logging.getLogger(name).addFilter(not_from_torchao)


def explain(problem: Exception, args: list[str]) -> tuple[str, int]:
    """One line about an error of this command line, and the exit code: 2 for bad use, 1 for a
    failure while running."""
    text = " ".join(str(problem).split())
    if isinstance(problem, Stopped):
        return str(problem), 130
    if hasattr(problem, "format_message"):  # an error of click, wherever typer keeps click
        return explain_usage(problem, args), 2
    if isinstance(problem, Failure):
        return text, 1
    if isinstance(problem, (BadUse, ValueError)):
        return text, 2
    return f"{type(problem).__name__}: {text[:500]} (--debug shows where)", 1


def explain_usage(problem: Any, args: list[str]) -> str:
    context = getattr(problem, "ctx", None)
    parameter = getattr(problem, "param", None)
    text = problem.format_message().rstrip(".")
    if context and parameter:
        source = origin(context, parameter.name)
        if not source.startswith("--"):
            text += f" (from {source})"
    meaning = getattr(parameter, "help", None)
    if parameter and meaning and type(problem).__name__ == "MissingParameter":
        if parameter.metavar not in text:
            text += f" {parameter.metavar}"
        text += f": {meaning.rstrip('.')}"
    if hasattr(problem, "option_name"):
        text += policy_hint(problem.option_name, args)
    return f"{text} (see {getattr(context, 'command_path', 'infinipot')} --help)"


def policy_hint(option: str, args: list[str]) -> str:
    """Where an unknown option belongs if a policy of another package is chosen; else nothing."""
    names = [re.search(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*(?![\w=])", text) for text in args]
    for before, text, name in zip(["", *args], args, names, strict=False):
        if name and (before == "--policy" or text.startswith("--policy=")):
            word = option.lstrip("-").replace("-", "_")
            return (
                f"; an option of a policy of your own stands in its parentheses: "
                f"--policy '{name[0]}({word}=...)'"
            )
    return ""


__all__ = ["main"]
