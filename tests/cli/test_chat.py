"""`infinipot chat`, in a terminal and in a pipe."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from commands import POT, TEXT, Terminal

from infinipot import PotConfig, Session, load
from infinipot.cli import main, slash
from infinipot.cli.wrap import Wrapper

if TYPE_CHECKING:
    from infinipot.cli.terminal import TerminalScreen

CONFIG = PotConfig(pot_size=128, distill_to=48, chunk_tokens=16)


@pytest.fixture
def say(run: Any, model: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a chat whose messages are piped in. Returns exit code, stdout and stderr."""

    def said(*lines: str, args: tuple[object, ...] = ()) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        return run("chat", model, *POT, "--max-tokens", 5, *args)

    return said


@pytest.fixture
def session(model: str) -> Session:
    return Session(*load(model), CONFIG)


def test_chat_in_a_terminal(model: str, state: Path, tmp_path: Path) -> None:
    pytest.importorskip("prompt_toolkit")
    pot = tmp_path / "a.pot"
    terminal = Terminal("chat", model, *POT, "--max-tokens", "100000", "--save-pot", str(pot))

    def keys(text: str, *shown: str) -> None:
        os.write(terminal.master, text.encode())
        for part in shown:
            terminal.until(part)

    terminal.until("> ")
    assert "pot of 128 entries" in terminal.shown
    assert "/help" in terminal.shown
    keys("a line to clear\x03", "a line to clear")
    # between two prompts Ctrl-C is a signal, and this terminal has nobody to send it to
    terminal.until("> ", after="\x1b[?2004l")
    keys("\x03", "Ctrl-D or /exit ends the chat")
    keys("/exot\r", "did you mean '/exit'?")
    keys("exit\r", "/exit is the command")
    keys("typed\\\rbelow", "below")
    keys("\x1b[200~, first\nsecond\n\nlast\x1b[201~\r", "last")
    assert os.read(terminal.child.stdout.fileno(), 1)  # the answer has begun
    keys("waits")  # for the next prompt
    terminal.child.send_signal(signal.SIGINT)  # stops the answer
    terminal.until("stopped; what was said stays")
    terminal.until("waits")
    keys("\x03/stats\r", "in a pot of 128")
    keys("\x04", "pot saved in", str(pot), "infinipot chat -c goes on")
    code, out = terminal.close()
    assert code == 0
    assert "waits" not in out
    typed = (state / "history").read_text()
    assert "+typed\n+below, first\n+second\n+\n+last\n" in typed
    assert "/exot" in typed
    assert [path.stat().st_mode & 0o77 for path in state.iterdir()] == [0, 0, 0]


def test_a_terminal_that_closes_keeps_the_chat(model: str, state: Path) -> None:
    pytest.importorskip("prompt_toolkit")
    terminal = Terminal("chat", model, *POT, "--max-tokens", "5")
    terminal.until("> ")
    os.write(terminal.master, b"Hello\r")
    terminal.until("the answer was cut")
    terminal.child.send_signal(signal.SIGHUP)
    os.close(terminal.master)
    assert terminal.child.wait() == 0
    assert '["Hello", "' in (state / "chat.json").read_text()


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Iterator[TerminalScreen]:
    """A screen whose keys come from a pipe, and are those that the test writes."""
    pytest.importorskip("prompt_toolkit")
    from prompt_toolkit.application import create_app_session
    from prompt_toolkit.input import create_pipe_input
    from prompt_toolkit.output import DummyOutput

    from infinipot.cli import terminal

    monkeypatch.setattr(terminal, "create_output", lambda stream: DummyOutput())
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        screen = terminal.TerminalScreen(quiet=True)
        screen.keys = keys
        yield screen


@pytest.fixture
def watch(screen: TerminalScreen) -> Iterator[Any]:
    """Its signals are put back, and a prompt that never ends fails after 20 s."""
    from infinipot.cli.chat import TerminalWatch

    watch = TerminalWatch(screen)

    def alarm(*_: object) -> None:
        screen.prompt.app.exit(
            exception=AssertionError("the prompt waits after the terminal's end")
        )

    before = signal.signal(signal.SIGALRM, alarm)
    signal.alarm(20)
    with watch:
        yield watch
    signal.alarm(0)
    for number, handler in zip(watch.numbers, watch.before, strict=True):
        signal.signal(number, handler)
    signal.signal(signal.SIGALRM, before)


def hang_up(*_: object) -> None:
    signal.raise_signal(signal.SIGHUP)


@pytest.mark.parametrize("place", ["a callback", "the start", "the last key"])
def test_a_terminal_that_closes_ends_the_prompt(screen: Any, watch: Any, place: str) -> None:
    """asyncio catches what its callbacks raise, so a handler must not raise there."""
    app = screen.prompt.app
    if place == "a callback":
        app.after_render += lambda _: app.loop.call_soon(hang_up)
    elif place == "the start":
        app.on_reset += hang_up
    else:
        screen.keys.send_text("typed\r")
        leave = app.exit
        app.exit = lambda **how: (leave(**how), hang_up())
    with watch.talking():
        assert screen.next_message() in (None, "typed")
    assert (watch.happened, screen.ended) == (True, True)


@pytest.mark.parametrize("swallowed", [True, False])
def test_a_terminal_that_closes_ends_the_talk(
    screen: Any, watch: Any, monkeypatch: pytest.MonkeyPatch, swallowed: bool
) -> None:
    """Outside the prompt an exception ends the talk. It may be lost, as in a `__del__`."""
    from infinipot.cli import chat

    def answer(conversation: Any) -> bool:
        with contextlib.suppress(chat.HungUp if swallowed else ()):
            hang_up()
        answers.append(conversation)
        return True

    answers: list[Any] = []
    monkeypatch.setattr(chat, "take_message", answer)
    with watch.talking():
        chat.talk_on(SimpleNamespace(screen=screen))
    assert len(answers) == swallowed
    hang_up()  # what was said is being kept


def test_chat_with_piped_messages(say: Any, session: Session, book: str, tmp_path: Path) -> None:
    code, out, err = say(
        "Hello", "", "Who are you?", f"/save {tmp_path / 'x.pot'}", args=("-f", book)
    )
    session.append(TEXT[:1200])
    first = session.chat("Hello", max_tokens=5)
    second = session.chat("Who are you?", max_tokens=5)
    assert (code, out) == (0, f"{first}\n{second}\n")
    assert "> " not in err
    assert (tmp_path / "x.pot").exists()


def test_a_chat_goes_on(
    say: Any, session: Session, run: Any, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, err = say(args=("-c",))
    assert (code, "there is no conversation to go on with" in err) == (2, True)
    first = say("Hello")[1]
    assert first == session.chat("Hello", max_tokens=5) + "\n"
    assert say("And?", args=("-c",))[1] == session.chat("And?", max_tokens=5) + "\n"
    assert say("Not kept", args=("--private",))[0] == 0
    monkeypatch.setenv("INFINIPOT_MODEL", "smollm2")
    monkeypatch.setattr(sys, "stdin", io.StringIO("More?\n"))
    twin = session.fork()
    code, out, err = run("chat", "-c", *POT, "--max-tokens", 5)
    assert (code, out) == (0, twin.chat("More?", max_tokens=5) + "\n"), err
    session = twin
    code, out, _ = say("More?", args=("-c",))
    assert out == session.chat("More?", max_tokens=5) + "\n"
    code, _, err = run("chat", "smollm2", "-c")
    assert (code, "the newest conversation is with" in err) == (2, True)
    assert (run("chat", "-c", "--pot", "x")[0], run("chat", "-c", "--pot-size", 64)[0]) == (2, 2)
    (state / "chat.json").write_text("{}")
    code, _, err = run("chat", "-c")
    assert (code, "is damaged" in err, "--pot" in err) == (2, True, True)


def test_steps_are_taken_back(say: Any, session: Session, book: str) -> None:
    lines = ("/undo", "/retry", "One", "Two", "/undo", "Three", "/retry", "/retry hot", "/retry 9")
    code, out, err = say(*lines)
    one = session.chat("One", max_tokens=5)
    fork = session.fork()
    two = session.chat("Two", max_tokens=5)
    three = fork.chat("Three", max_tokens=5)
    start = f"{one}\n{two}\n{three}\n{three}\n"
    assert out.startswith(start)
    assert out.removeprefix(start) not in ("", f"{three}\n")  # random among 300 tokens
    assert code == 0
    for part in ("nothing to take back", "no message to answer again", "'hot' is no temperature"):
        assert part in err


def test_the_pot_of_a_chat(say: Any, session: Session, book: str, tmp_path: Path) -> None:
    saved = tmp_path / "s p.pot"
    lines = (
        "/file no/such",
        "/file -",
        f"/file {book}",
        "One",
        f"/save {saved}",
        "/clear",
        "Two",
        f"/load {saved}",
        "Three",
        "/system Be brief.",
        "/system",
        "Four",
        f"/load {book}",
        "/file",
        "/load",
        "/save",
    )
    code, out, err = say(*lines)
    session.append(Path(book))
    other = session.fork()
    one = session.chat("One", max_tokens=5)
    two = other.chat("Two", max_tokens=5)
    three = session.chat("Three", max_tokens=5)
    brief = Session(session.runner, session.tokenizer, CONFIG, system="Be brief.")
    four = brief.chat("Four", max_tokens=5)
    assert out == f"{one}\n{two}\n{three}\n{four}\n"
    for part in (
        "no file no/such",
        "/file - would read stdin",
        "system prompt: Be brief.",
        "not a readable pot",
        "/file needs",
        "/load needs",
        "/save needs",
    ):
        assert part in err, part
    assert code == 0


def test_an_interrupted_step_changes_nothing(
    say: Any, session: Session, monkeypatch: pytest.MonkeyPatch, book: str
) -> None:
    """A second Ctrl-C comes while a message is read."""
    from infinipot.cli import conversation
    from infinipot.cli.screen import Screen

    def interrupted(*args: Any, **options: Any) -> Any:
        args[0].append("half a message")
        raise KeyboardInterrupt

    answer = conversation.answer
    answers = iter([interrupted, answer, interrupted, answer])
    monkeypatch.setattr(conversation, "answer", lambda *a, **o: next(answers)(*a, **o))
    monkeypatch.setattr(Screen, "interactive", True)
    code, out, _ = say("Lost", "Hello", "/retry", "More?")
    first = session.chat("Hello", max_tokens=5)
    second = session.chat("More?", max_tokens=5)
    assert (code, out) == (0, f"{first}\n{second}\n")


@pytest.mark.parametrize(
    ("message", "command"),
    [
        ("hello", None),
        ("/exit", ("exit", "")),
        ("/quit", ("exit", "")),
        ("/?", ("help", "")),
        ("/file  a b.txt ", ("file", "a b.txt")),
        ("/system one\ntwo", ("system", "one\ntwo")),
        ("/usr/bin/env is where?", None),
        ("/* a comment */", None),
        (" /exit", None),
        (" exit", None),
        ("exit now", None),
    ],
)
def test_slash(message: str, command: Any) -> None:
    assert slash.parse(message) == command


@pytest.mark.parametrize(
    ("message", "near"),
    [
        ("/hepl", "/help"),
        ("/Exit", "/exit"),
        ("/lod x", "/load"),
        ("QUIT", "/exit"),
        (":q", "/exit"),
    ],
)
def test_words_that_are_no_commands(message: str, near: str) -> None:
    with pytest.raises(slash.UnknownCommand, match=near):
        slash.parse(message)


def wrapped(text: str, width: int = 10, step: int = 3) -> str:
    out: list[str] = []
    wrapper = Wrapper(out.append, lambda: width)
    for place in range(0, len(text), step):
        wrapper.push(text[place : place + step])
    wrapper.finish()
    return "".join(out)


@pytest.mark.parametrize("step", [1, 4, 100])
@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("one two three four", ["one two", "three four"]),
        ("  indented text", ["  indented", "text"]),
        ("a verylongwordthatisbroken b", ["a", "verylongwordthatisbroken", "b"]),
        ("一二三四五六七", ["一二三四五", "六七"]),
        ("```\nx = 'no line is broken here'\n```\none two three", None),
        ("red \x1b[31m", ["red", "\\x1b[31m"]),
        ("one\n\ntwo", ["one", "", "two"]),
        ("", []),
    ],
)
def test_wrapping(text: str, lines: list[str] | None, step: int) -> None:
    if lines is None:
        lines = ["```", "x = 'no line is broken here'", "```", "one two", "three"]
    assert wrapped(text, step=step).splitlines() == lines


def test_ask(run: Any, model: str, book: str, tmp_path: Path, monkeypatch: Any) -> None:
    pot = tmp_path / "book.pot"
    assert main(["distill", model, "-f", book, "-o", str(pot), *POT, "--quiet"]) == 0
    before = pot.read_bytes()
    expected = run("generate", model, "--pot", pot, "-p", "Who?", "--max-tokens", 5)[1]
    code, text, _ = run("ask", pot, "Who?", "--model", model, "--max-tokens", 5)
    assert (code, text) == (0, expected)
    assert pot.read_bytes() == before
    out, into = os.pipe()
    os.write(into, b"Who?\n")
    os.close(into)
    with open(out) as pipe:
        monkeypatch.setattr(sys, "stdin", pipe)
        assert run("ask", pot, "--model", model, "--max-tokens", 5)[:2] == (0, expected)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    code, _, err = run("ask", pot, "Who?")
    assert (code, "give this model with --model" in err) == (2, True)
    code, _, err = run("ask", pot, "--model", model)
    assert (code, "nothing is asked" in err) == (2, True)
