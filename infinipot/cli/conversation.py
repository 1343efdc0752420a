"""A conversation on the command line: its session, and what can be taken back."""

from __future__ import annotations

import dataclasses
import os
import shlex
from typing import TYPE_CHECKING

from infinipot.cli.answer import Answer, answer
from infinipot.cli.console import BadUse, Failure, Stopped, interrupts
from infinipot.cli.progress import ReadingProgress
from infinipot.cli.screen import Screen
from infinipot.cli.session import Job, check_question, statistics, write
from infinipot.cli.source import Source
from infinipot.cli.state import Talk

if TYPE_CHECKING:
    from infinipot import Sampling, Session


@dataclasses.dataclass(frozen=True)
class Moment:
    """A conversation at one time. Its session is not used any more, but forked."""

    session: Session
    start: Session | None
    turns: tuple[tuple[str, str], ...]
    message: str | None = None
    """The message that came next, if it was one."""


class Conversation:
    """Messages and answers in one session. Each step can be taken back, once.

    After an error, or a second Ctrl-C, the conversation is as it was before the step.
    """

    def __init__(self, job: Job, session: Session, screen: Screen, talk: Talk) -> None:
        self.job = job
        self.session = session
        self.screen = screen
        self.model = talk.model
        self.turns = talk.turns
        self.before: Moment | None = None
        self.start: Session | None = None
        """What was read before the first message; None: nothing."""
        if session.stats.tokens_read and not talk.turns:
            self.start = session.fork()
        self.retries = 0

    @property
    def talk(self) -> Talk:
        return Talk(self.model, self.turns)

    def _moment(self, session: Session, message: str | None = None) -> Moment:
        """The present time, with this session to go back to."""
        return Moment(session, self.start, self.turns, message)

    def _go_back(self, moment: Moment) -> None:
        self.session = moment.session
        self.start = moment.start
        self.turns = moment.turns

    def reply(self, message: str) -> None:
        """Answer a message."""
        before = self._moment(self.session.fork(), message)
        self.retries = 0
        try:
            reply = self._answer(before, self.job.sampling)
        except BaseException:
            self._go_back(before)
            raise
        self._note_end(reply)

    def _answer(self, before: Moment, sampling: Sampling) -> Answer:
        message = str(before.message)
        with self.screen.answering():
            reply = answer(self.session, message, sampling, self.screen.show, aware=False)
        self.before = before
        self.turns = (*before.turns, (message, reply.text))
        return reply

    def _note_end(self, reply: Answer) -> None:
        if reply.stopped:
            self.screen.note(
                "stopped; what was said stays (/retry answers again, /undo takes back)"
            )
        elif reply.finish_reason == "length":
            self.screen.note(
                f"the answer was cut after {reply.tokens:,} tokens: "
                f"--max-tokens {2 * reply.tokens} allows more"
            )

    # ---------------------------------------------------------------- the commands

    def retry(self, text: str) -> None:
        """Answer the last message again, perhaps at another temperature."""
        sampling = self._again(text)
        if self.before is None or self.before.message is None:
            raise BadUse("there is no message to answer again: /retry comes behind an answer")
        if sampling.temperature == 0:
            self.screen.note("at temperature 0 the answer stays the same: /retry 0.8 varies it")
        after = self._moment(self.session)
        self.session = self.before.session.fork()
        try:
            reply = self._answer(self.before, sampling)
        except BaseException:
            self._go_back(after)
            raise
        self._note_end(reply)

    def _again(self, text: str) -> Sampling:
        """The options of another answer: a new seed where one is given."""
        sampling = self.job.sampling
        self.retries += 1
        if sampling.seed is not None:
            sampling = dataclasses.replace(sampling, seed=sampling.seed + self.retries)
        if not text:
            return sampling
        try:
            temperature = float(text)
        except ValueError:
            raise BadUse(f"{text!r} is no temperature: write /retry 0.8, or /retry") from None
        return dataclasses.replace(sampling, temperature=temperature)

    def undo(self) -> None:
        if self.before is None:
            raise BadUse("there is nothing to take back")
        self._go_back(self.before)
        self.before = None
        self.screen.note(f"taken back; {statistics(self.session)}")

    def clear(self) -> None:
        """Forget the messages. What was read before the first one stays."""
        before = self._moment(self.session)
        if self.start is not None:
            self.session = self.start.fork()
            what = f"the messages are forgotten; {statistics(self.session)} stay"
        else:
            self.session = self._fresh(self.session.system)
            what = "all is forgotten"
        self.turns = ()
        self.before = before
        self.screen.note(f"{what} (/undo takes back)")

    def system(self, text: str) -> None:
        """Begin anew with this system prompt; without text, show the present one."""
        if not text:
            self.screen.note(f"system prompt: {self.session.system or 'none'}")
            return
        fresh = self._fresh(text)
        before = self._moment(self.session)
        read = self.session.stats.tokens_read
        self.session = fresh
        self.start = None
        self.turns = ()
        self.before = before
        note = "a system prompt stands first, so the conversation begins anew with it"
        if read:
            note += "; /file reads a text again, /undo takes back"
        self.screen.note(note)

    def _fresh(self, system: str | None) -> Session:
        """A session that has read nothing, with the options of this one."""
        from infinipot import Session

        old = self.session
        session = Session(
            old.runner, old.tokenizer, self.job.config, system=system, template=old.template
        )
        session.special_tokens = old.special_tokens
        return session

    def file(self, text: str) -> None:
        """Read files into the pot. If that fails or is stopped, the pot is as it was."""
        if not text:
            raise BadUse("/file needs a path: /file notes.txt")
        check_question(self.job.config, None)
        names = paths(text)
        if "-" in names:
            raise BadUse("/file - would read stdin, where the messages come from: give a file")
        source = Source(*names)
        before = self._moment(self.session.fork())
        try:
            self._read(source)
        except Stopped:
            self.session = before.session
            self.screen.note(f"stopped; nothing of {source.name} was kept")
            return
        except BaseException:
            self.session = before.session
            raise
        if not self.turns:
            self.start = self.session.fork()
        tokens = self.session.stats.tokens_read - before.session.stats.tokens_read
        self.before = before
        self.screen.note(f"read {source.name}, {tokens:,} tokens")

    def _read(self, source: Source) -> None:
        progress = ReadingProgress(self.session, source, self.job.options.quiet)
        try:
            with interrupts.gently("stopping ..."):
                self.session.append(source, progress=progress)
                interrupts.check()
        finally:
            progress.close()
        if source.problem:
            raise BadUse(source.problem)
        if not source.bytes_read:
            raise BadUse(f"{source.name} is empty: there is nothing to read")

    def save(self, text: str) -> None:
        if not text:
            raise BadUse("/save needs a file: /save talk.pot")
        path = os.path.expanduser(text)
        write(self.session, path)
        self.screen.note(f"pot saved in {path}")

    def load(self, text: str) -> None:
        """Go on from a saved pot."""
        from infinipot import PotFileError, Session

        if not text:
            raise BadUse("/load needs a file: /load talk.pot")
        runner = self.session.runner
        try:
            loaded = Session.load(os.path.expanduser(text), runner, self.session.tokenizer)
        except PotFileError as problem:
            raise Failure(str(problem)) from None
        loaded.special_tokens = self.session.special_tokens
        self.before = self._moment(self.session)
        self.session = loaded
        self.start = loaded.fork()
        self.turns = ()
        self.screen.note(f"going on from {text}: {statistics(loaded)} (/undo takes back)")


def paths(text: str) -> list[str]:
    """The paths behind /file: the whole line if it names something, else words as in a shell, which
    is how terminals write files that are dropped on them."""
    whole = os.path.expanduser(text)
    if os.path.exists(whole):
        return [whole]
    try:
        return [os.path.expanduser(word) for word in shlex.split(text)] or [whole]
    except ValueError:  # a quote that does not end
        return [whole]
