"""infinipot chat: a line in, an answer out."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from infinipot.cli.app import Model, SavedPot, TextFiles, app
from infinipot.cli.command_options import CommandOptions, takes
from infinipot.cli.console import BadUse, Failure, check_utf8, put, say
from infinipot.cli.options import COMMON, POT, SAMPLING
from infinipot.cli.source import Source

if TYPE_CHECKING:
    from infinipot import Session
    from infinipot.cli.session import Job

HELP = (
    "/stats what was read and how much memory it takes · /save FILE save the pot · "
    "/quit or Ctrl-D leave · Ctrl-C stop an answer"
)
NewPot = Annotated[
    Path | None,
    typer.Option(
        "--save-pot",
        metavar="FILE",
        help="Save the pot here, after reading and when the chat ends.",
    ),
]


@app.command("chat")
@takes(POT, SAMPLING, COMMON)
def chat(
    model: Model,
    options: CommandOptions,
    file: TextFiles = None,
    pot: SavedPot = None,
    save_pot: NewPot = None,
) -> int:
    """Talk, without end, in a pot of fixed size. A line is a message; /help lists the commands."""
    from infinipot.cli.session import open_session, prepare, read

    if "-" in (file or ()):
        raise BadUse(
            "-f - would read the text from stdin, where the messages come from: give a file"
        )
    source = None
    if file:
        source = Source(*file)
    job = prepare(options, source=source, question=None, pot=pot, save=save_pot)
    if job.config.prefill == "whole":
        raise BadUse(
            "prefill whole distils once for each answer, so a chat has no pot to go on with: "
            "leave it out, or ask with generate"
        )
    session = open_session(job, model)
    if job.source is not None:
        read(job, session)
    talk(job, session)
    return 0


def talk(job: Job, session: Session) -> None:
    """Answer messages until the input ends. Then save the pot if the command asks for it."""
    from infinipot.cli.session import report, save

    interactive = sys.stdin.isatty()
    if interactive and not job.options.quiet:
        say("a line is a message; /help, /quit")
    while True:
        line = next_line(interactive)
        if line is None and interactive:
            print(file=sys.stderr)
        if line is None:
            break
        if line.startswith("/"):
            if not command(line, session):
                break
        elif line.strip():
            reply(job, session, line, interactive)
    if job.save is not None:
        say(save(job, session))
    report(job, session)


def reply(job: Job, session: Session, message: str, interactive: bool) -> None:
    """Answer one message. On a terminal a message that cannot be answered does not end the chat."""
    from infinipot.cli.answer import answer, report_cut

    try:
        answered = answer(session, message, job.sampling, put, aware=False)
    except ValueError as problem:
        if not interactive:
            raise
        say(str(problem))
    else:
        put("\n")
        report_cut(answered, job.options)


def next_line(interactive: bool) -> str | None:
    """The next message; None at the end of the input, or after Ctrl-C at the prompt."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        if interactive and sys.stdout.isatty():
            import readline  # noqa: F401  (editing and history)

            return input("> ")
        if interactive:
            print("> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        check_utf8("the message", line)
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
    """Run a line that begins with /. Returns whether the chat goes on."""
    from infinipot.cli.session import statistics, write

    word, _, rest = line.strip().partition(" ")
    if word == "/quit":
        return False
    if word == "/stats":
        say(statistics(session))
    elif word == "/save" and rest.strip():
        try:
            write(session, rest.strip())
            say(f"pot saved in {rest.strip()}")
        except Failure as problem:
            say(str(problem))
    elif word == "/help":
        say(HELP)
    else:
        say(f"{word} is not known ({HELP}). A message that begins with / needs a space before it")
    return True
