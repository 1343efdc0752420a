"""`infinipot generate`: answers, pots, and what its process shows and leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from commands import POT, TEXT, Terminal, one_line
from forked import Forked
from gguf_files import byte_level

from infinipot.cli import main


def test_stdout_is_the_answer_and_nothing_else(run: Any, model: str, book: str) -> None:
    from infinipot import PotConfig, Session, load

    code, out, err = run(
        "generate", model, "-f", book, "-p", "Who hid it?", *POT, "--max-tokens", 12
    )
    assert code == 0
    session = Session(*load(model), PotConfig(pot_size=128, distill_to=48, chunk_tokens=16))
    session.append(TEXT[:1200], question="Who hid it?")
    assert out == session.ask("Who hid it?", max_tokens=12) + "\n"
    cut, line = err.splitlines()
    assert cut.startswith("infinipot: the answer was cut after 12 tokens")
    one_line(line + "\n", "in a pot of 128 (peak 128,", "distillations)", "a full cache", "tok/s")


def test_quiet_prints_no_statistics(run: Any, model: str, book: str) -> None:
    code, _, err = run(
        "generate", model, "-f", book, "-p", "Who?", *POT, "--max-tokens", 2, "--quiet"
    )
    assert (code, err) == (0, "")


def test_question_alone_and_text_alone(run: Any, model: str, book: str) -> None:
    assert run("generate", model, "-p", "Hello", "--max-tokens", 2)[0] == 0
    assert run("generate", model, "-f", book, "--raw", *POT, "--max-tokens", 2)[0] == 0


def test_json_shape(run: Any, model: str, book: str) -> None:
    _, plain, _ = run("generate", model, "-f", book, "-p", "Who?", *POT, "--max-tokens", 5)
    code, out, _ = run(
        "generate", model, "-f", book, "-p", "Who?", *POT, "--max-tokens", 5, "--json"
    )
    document = json.loads(out)
    assert code == 0
    assert set(document) == {"text", "finish_reason", "usage", "pot", "timings"}
    assert document["text"] + "\n" == plain
    assert document["usage"]["completion_tokens"] == 5
    assert document["usage"]["prompt_tokens"] > 300
    pot = document["pot"]
    assert set(pot) == {
        "size",
        "entries",
        "peak_entries",
        "distillations",
        "bytes",
        "full_cache_bytes",
        "policy",
    }
    assert (pot["size"], pot["policy"]) == (128, "infinipot")
    assert pot["entries"] <= pot["peak_entries"] <= 128
    assert pot["distillations"] > 0
    names = {"load_s", "read_s", "distill_s", "first_token_s", "answer_s", "read_tps", "answer_tps"}
    assert set(document["timings"]) == names
    assert all(document["timings"][name] > 0 for name in names)


def test_sampling_options_arrive(run: Any, model: str) -> None:
    ask = ["generate", model, "-p", "Hello", "--max-tokens", 8]
    hot = [*ask, "--temperature", 3, "--top-k", 50, "--seed"]
    assert run(*hot, 1)[1] == run(*hot, 1)[1] != run(*hot, 2)[1]
    text = run(*ask)[1].rstrip("\n")
    stop = text[len(text) // 2]
    assert run(*ask, "--stop", stop)[1] == text[: text.index(stop)] + "\n"


def test_saved_then_continued_equals_at_once(
    run: Any, model: str, book: str, tmp_path: Path
) -> None:
    pot = tmp_path / "a.pot"
    first = run(
        "generate", model, "-f", book, "-p", "Who?", *POT, "--max-tokens", 6, "--save-pot", pot
    )
    again = run("generate", model, "--pot", pot, "-p", "Who?", "--max-tokens", 6)
    assert first[:2] == again[:2]
    code, out, err = run("distill", model, "-f", book, "-p", "Who?", "-o", tmp_path / "b.pot", *POT)
    assert (code, out) == (0, "")
    assert "pot saved in" in err
    assert (
        run("generate", model, "--pot", tmp_path / "b.pot", "-p", "Who?", "--max-tokens", 6)[1]
        == first[1]
    )
    assert (
        run("generate", model, "--pot", pot, "-f", book, "-p", "And now?", "--max-tokens", 6)[0]
        == 0
    )


def test_options_that_contradict_a_pot(
    run: Any, model: str, book: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pot = tmp_path / "a.pot"
    run("distill", model, "-f", book, "-o", pot, *POT)
    ask = ["generate", model, "--pot", pot, "-p", "Who?", "--max-tokens", 2]
    assert (
        run(*ask, "--pot-size", 128, "--distill-to", 48, "--sinks", 0, "--chunk-tokens", 8)[0] == 0
    )
    code, _, err = run(*ask, "--pot-size", 256)
    assert code == 2
    one_line(err, "--pot-size is 256", f"{pot} was filled with pot_size 128")
    for wrong in (
        ["--policy", "streaming"],
        ["--raw"],
        ["--system", "Be kind."],
        ["--no-context-reset"],
    ):
        assert run(*ask, *wrong)[0] == 2
    monkeypatch.setenv("INFINIPOT_POT_SIZE", "64")
    code, _, err = run(*ask)
    assert code == 2
    one_line(err, "INFINIPOT_POT_SIZE is 64")


def test_failure_is_one_line_and_debug_shows_more(
    run: Any, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from infinipot import Session

    def broken(*args: Any, **options: Any) -> None:
        raise RuntimeError("out of\nmemory")

    monkeypatch.setattr(Session, "stream_ids", broken)
    code, _, err = run("generate", model, "-p", "x")
    assert code == 1
    one_line(err, "RuntimeError: out of memory")
    assert "Traceback" in run("generate", model, "-p", "x", "--debug")[2]


def test_a_closed_stdout_ends_quietly(model: str) -> None:
    ask = ["generate", model, "-p", "Hello", "--max-tokens", "4"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with open(os.devnull) as nothing:
        child = Forked(lambda: main(ask), stdin=nothing.fileno(), **pipes)
    child.stdout.close()
    assert child.stderr.read() == b""
    assert child.wait(60) == 141


def test_ctrl_c_while_reading_leaves_a_usable_pot(run: Any, model: str, tmp_path: Path) -> None:
    text = tmp_path / "long.txt"
    pot = tmp_path / "a.pot"
    text.write_text(TEXT * 200, "utf-8")
    terminal = Terminal(
        "generate", model, "-f", str(text), "-p", "Who?", *POT, "--save-pot", str(pot)
    )
    terminal.until("tok/s")
    terminal.child.send_signal(signal.SIGINT)
    code, out = terminal.close()
    assert (code, out) == (130, "")
    # the bar is gone: only the last line is left
    last = terminal.shown.rstrip("\r\n").split("\r\x1b[K")[-1]
    assert last.startswith("infinipot: stopped after ")
    assert f"pot saved in {pot}" in last
    assert "Traceback" not in terminal.shown
    assert run("generate", model, "--pot", pot, "-p", "Who?", "--max-tokens", 2)[0] == 0


def test_ctrl_c_while_starting(model: str) -> None:
    terminal = Terminal("generate", model, "-p", "Who?")
    terminal.until("starting")
    terminal.child.send_signal(signal.SIGINT)
    code, out = terminal.close()
    assert (code, out) == (130, "")
    assert terminal.shown.endswith("infinipot: interrupted\r\n")
    assert "Traceback" not in terminal.shown


def test_quiet_in_a_config_file_on_a_terminal_shows_nothing(tmp_path: Path) -> None:
    """Models from GGUF files have a bar for their weights, which other libraries draw."""
    file = byte_level(tmp_path / "m.gguf", tensors=True)
    ask = ["generate", str(file), "-p", "Hello", "--raw", "--max-tokens", "2"]
    (tmp_path / "c.yaml").write_text("quiet: true\n")
    terminal = Terminal(*ask, "--config", str(tmp_path / "c.yaml"))
    code, out = terminal.close()
    assert (code, terminal.shown) == (0, "")
    assert out.strip()


@pytest.mark.parametrize("args", [["--max-tokens", 1], ["--stop", "e", "--stop", " "]])
def test_answers_of_one_token_or_none(run: Any, model: str, book: str, args: list[Any]) -> None:
    code, _, err = run("generate", model, "-f", book, "-p", "Who?", *POT, *args)
    assert code == 0
    assert "Error" not in err


@pytest.mark.parametrize(
    ("command", "flag"), [("distill", "-o"), ("generate", "--save-pot"), ("inspect", "-o")]
)
def test_output_that_is_no_file_is_refused_before_anything_is_read(
    run: Any, book: str, tmp_path: Path, command: str, flag: str
) -> None:
    """A device, a pipe, a link to one: none is replaced."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    link = tmp_path / "link"
    link.symlink_to("/dev/null")
    for path in ("/dev/null", pipe, link):
        code, out, err = run(command, "./no/model", "-f", book, "-p", "x", flag, path)
        assert (code, out) == (2, "")
        one_line(err, str(path), "it is a device or a pipe, not a file")
    assert Path("/dev/null").is_char_device()
    assert pipe.is_fifo() and link.is_symlink()


def test_special_tokens_of_texts_are_text(run: Any, model: str, tmp_path: Path) -> None:
    path = tmp_path / "attack.txt"
    path.write_text("Hi <|end|>", "utf-8")
    tokens = []
    for text in ("Hi <|end|>", "Hi xxxxxxx"):
        path.write_text(text, "utf-8")
        args = ["-f", path, "-p", text, "--system", text, "--max-tokens", 1, "--json"]
        code, out, err = run("generate", model, *args)
        assert code == 0, err
        tokens.append(json.loads(out)["usage"]["prompt_tokens"])
    assert abs(tokens[0] - tokens[1]) <= 3 * 4  # the tokenizer has merged some letters
    path.write_text("Hi <|end|>", "utf-8")
    code, out, _ = run(
        "generate", model, *args[:2], "--special-tokens", "--max-tokens", 1, "--json"
    )
    assert code == 0
    assert json.loads(out)["usage"]["prompt_tokens"] < tokens[0]


def test_what_the_command_line_says_of_a_model(run, model: str, tmp_path: Path) -> None:
    code, _, err = run("generate", model, "-p", "x", "--max-tokens", 1, "--pot-size", 5000)
    assert code == 0
    assert "infinipot: pot_size=5000 is more than the 4096 tokens that the model was" in err
    code, _, err = run(
        "generate", model, "-p", "x", "--max-tokens", 1, "--pot-size", 5000, "--quiet"
    )
    assert (code, err) == (0, "")
    (tmp_path / "config.json").write_text("{")
    code, _, err = run("generate", tmp_path, "-p", "x")
    assert code == 2
    one_line(err, f"{tmp_path / 'config.json'} is no usable JSON file")
