"""infinipot chat: a message in, an answer out."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from infinipot.cli.app import Model, SavedPot, TextFiles, app
from infinipot.cli.command_options import CommandOptions, takes
from infinipot.cli.console import BadUse, Failure
from infinipot.cli.options import COMMON, POT, SAMPLING
from infinipot.cli.slash import UnknownCommand, help_lines, parse
from infinipot.cli.source import Source
from infinipot.cli.state import Talk, kept_pot, kept_talk, make_folder, write_talk

if TYPE_CHECKING:
    from infinipot import Session
    from infinipot.cli.conversation import Conversation
    from infinipot.cli.screen import Screen
    from infinipot.cli.session import Job

NewPot = Annotated[
    Path | None,
    typer.Option(
        "--save-pot",
        metavar="FILE",
        help="Save the pot here, after reading and when the chat ends.",
    ),
]
Resume = Annotated[
    bool, typer.Option("-c", "--resume", "--continue", help="Go on with the newest conversation.")
]
Private = Annotated[
    bool,
    typer.Option("--private", help="Keep neither what is typed nor the conversation for -c."),
]


class CommandFailed(Exception):
    """A command inside the chat could not be run. The chat goes on."""


class HungUp(Exception):
    """The terminal was closed, or the program was asked to end."""


@app.command("chat")
@takes(POT, SAMPLING, COMMON)
def chat(
    model: Model,
    options: CommandOptions,
    file: TextFiles = None,
    pot: SavedPot = None,
    save_pot: NewPot = None,
    resume: Resume = False,
    private: Private = False,
) -> int:
    """Talk, without end, in a pot of fixed size. /help lists the commands inside. What is piped in
    has one message a line."""
    from infinipot.cli.session import open_session, prepare, read

    if "-" in (file or ()):
        raise BadUse(
            "-f - would read the text from stdin, where the messages come from: give a file"
        )
    talk = Talk(model)
    if resume:
        talk, pot = resumed(model, pot)
    source = None
    if file:
        source = Source(*file)
    screen = new_screen(options.quiet, private)
    with screen.open():
        job = prepare(options, source=source, question=None, pot=pot, save=save_pot)
        if job.config.prefill == "whole":
            raise BadUse(
                "prefill whole distils once for each answer, so a chat has no pot to go on with: "
                "leave it out, or ask with generate"
            )
        session = open_session(job, talk.model)
        if job.source is not None:
            read(job, session)
        run(job, session, screen, talk, keeps=not private)
    return 0


def resumed(model: str, pot: Path | None) -> tuple[Talk, Path]:
    """The newest conversation and its pot. model: empty, or that of the conversation."""
    talk = kept_talk()
    if pot is not None:
        raise BadUse("-c goes on with the newest conversation, --pot from a saved pot: give one")
    if model not in ("", talk.model):
        raise BadUse(
            f"the newest conversation is with {talk.model}, not {model}: leave out the model, or -c"
        )
    return talk, kept_pot()


def new_screen(quiet: bool, private: bool) -> Screen:
    """A terminal if the user sits at one, else lines from stdin."""
    from infinipot.cli.screen import Screen

    if not (sys.stdin.isatty() and (sys.stderr.isatty() or sys.stdout.isatty())):
        return Screen()
    from infinipot.cli.terminal import TerminalScreen

    return TerminalScreen(private, quiet)


def run(job: Job, session: Session, screen: Screen, talk: Talk, *, keeps: bool) -> None:
    """Answer messages until the input ends. Then save the pot where the command asks for it, and
    for -c if `keeps`."""
    from infinipot.cli.conversation import Conversation
    from infinipot.cli.session import save, statistics

    conversation = Conversation(job, session, screen, talk)
    screen.greet(talk, sizes(session))
    with TerminalWatch(screen) as watch:
        try:
            with watch.talking():
                talk_on(conversation)
        finally:
            notes = []
            if job.save is not None:
                notes.append(save(job, conversation.session))
            if not job.options.quiet:
                notes.append(statistics(conversation.session))
            if keeps and conversation.session.stats.tokens_read:
                notes += keep(conversation)
            if not watch.happened:
                for note in notes:
                    screen.note(note)


def sizes(session: Session) -> str:
    """What the header says of the pot."""
    pot = "no bound"
    if session.pot.size is not None:
        pot = f"pot of {session.pot.size:,} entries"
    if session.stats.tokens_read:
        pot += f", {session.stats.tokens_read:,} tokens read"
    return pot


class TerminalWatch:
    """The end of the terminal ends the talking inside. It interrupts nothing else, so that what was
    said is kept."""

    def __init__(self, screen: Screen) -> None:
        self.screen = screen
        self.happened = False
        self.over = False
        """Whether the talking has ended."""
        self.numbers = [signal.SIGTERM, *filter(None, [getattr(signal, "SIGHUP", None)])]

    def __enter__(self) -> TerminalWatch:
        self.before = [signal.signal(number, self._handle) for number in self.numbers]
        return self

    def _handle(self, number: int, frame: FrameType | None) -> None:
        first = not self.happened and not self.over
        self.happened = True
        if first and not self.screen.end_input():
            raise HungUp

    @contextmanager
    def talking(self) -> Iterator[None]:
        """Nothing can be shown in a terminal that was closed: that is no error then."""
        try:
            yield
        except (HungUp, OSError):
            if not self.happened:
                raise
        finally:
            self.over = True

    def __exit__(self, kind: type | None, problem: object, trace: object) -> bool:
        if not self.happened:  # else a second signal would end the program with an error
            for number, handler in zip(self.numbers, self.before, strict=True):
                signal.signal(number, handler)
        return isinstance(problem, HungUp)


def talk_on(conversation: Conversation) -> None:
    """Take messages until the input ends, or until /exit."""
    screen = conversation.screen
    goes_on = True
    while goes_on and not screen.ended:
        try:
            goes_on = take_message(conversation)
        except (UnknownCommand, CommandFailed) as problem:
            screen.note(str(problem))
        except KeyboardInterrupt:
            if not screen.interactive:
                raise
            screen.note("stopped at once; all is as it was before")
        except (BadUse, ValueError) as problem:
            if not screen.interactive:
                raise
            screen.note(str(problem))


def take_message(conversation: Conversation) -> bool:
    """Answer a message, or run a command. Returns whether the chat goes on."""
    message = conversation.screen.next_message()
    if message is None or conversation.screen.ended:
        return False
    command = parse(message)
    if command is None:
        if message.strip():
            conversation.reply(message)
        return True
    try:
        return obey(conversation, *command)
    except (BadUse, Failure, ValueError) as problem:
        raise CommandFailed(str(problem)) from None


def obey(conversation: Conversation, name: str, text: str) -> bool:
    """Run a command. Returns whether the chat goes on."""
    from infinipot.cli.session import statistics

    screen = conversation.screen
    if name == "exit":
        return False
    if name == "help":
        screen.show_rows(help_lines())
    elif name == "stats":
        screen.note(statistics(conversation.session))
    elif name in ("undo", "clear"):
        getattr(conversation, name)()
    else:
        getattr(conversation, name)(text)
    return True


def keep(conversation: Conversation) -> list[str]:
    """Keep the conversation for -c. Returns what to tell. A disk that is full ends no chat with an
    error."""
    from infinipot.cli.session import write

    talk = conversation.talk
    if os.path.exists(talk.model):
        talk = Talk(os.path.abspath(talk.model), talk.turns)
    try:
        make_folder()
        write(conversation.session, kept_pot())
        kept_pot().chmod(0o600)
        write_talk(talk)
    except (OSError, Failure) as problem:
        return [f"the conversation is not kept for infinipot chat -c: {problem}"]
    if conversation.screen.interactive and not conversation.job.options.quiet:
        return ["infinipot chat -c goes on with this conversation"]
    return []
