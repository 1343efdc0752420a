"""The chat loop: a line in, an answer out."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

from infinipot.cli import session as run
from infinipot.cli.console import BadUse, Failure, put, say, statistics

if TYPE_CHECKING:
    from infinipot import Session

HELP = "/stats what was read and what it takes · /save FILE save the pot · /quit or Ctrl-D leave · Ctrl-C stop an answer"


def next_line(interactive: bool) -> str | None:
    """The next message; None at the end of the input, or when Ctrl-C is pressed at the prompt."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        if interactive and sys.stdout.isatty():
            import readline  # noqa: F401  (editing and history)

            return input("> ")
        if interactive:
            print("> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if line:
            return line.rstrip("\r\n")
        return None
    except (EOFError, KeyboardInterrupt):
        return None
    except UnicodeDecodeError as problem:
        raise BadUse(f"the message is not UTF-8: {problem}") from None
    finally:
        signal.signal(signal.SIGINT, before)


def command(line: str, session: Session) -> bool:
    """Do what a line beginning with / says. Returns whether the chat goes on."""
    word, _, rest = line.strip().partition(" ")
    if word == "/quit":
        return False
    if word == "/stats":
        say(statistics(session))
    elif word == "/save" and rest.strip():
        try:
            run.write(session, rest.strip())
            say(f"pot saved in {rest.strip()}")
        except Failure as problem:
            say(str(problem))
    elif word == "/help":
        say(HELP)
    else:
        say(f"{word} is not known ({HELP}). A message that begins with / needs a space before it")
    return True


def talk(plan: run.Plan, session: Session) -> None:
    """Read the text, if there is one, then answer messages until the input ends. The pot is saved
    at the end, if that is wanted."""
    interactive = sys.stdin.isatty()
    if plan.source is not None:
        run.read(plan, session)
    if interactive and not plan.quiet:
        say("a line is a message; /help, /quit")
    while (line := next_line(interactive)) is not None:
        if line.startswith("/"):
            if not command(line, session):
                break
        elif line.strip():
            try:
                run.answer(session, line, plan.sampling, put, aware=False)
            except ValueError as problem:
                if not interactive:
                    raise
                say(str(problem))
            else:
                put("\n")
    else:
        if interactive:
            print(file=sys.stderr)
    if plan.save is not None:
        say(run.save(plan, session))
    run.report(plan, session)
