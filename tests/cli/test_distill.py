"""`infinipot distill` and `infinipot info`: a pot is written, and described."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from commands import POT, TEXT, Terminal, one_line


def test_info(run: Any, model: str, book: str, tmp_path: Path) -> None:
    pot = tmp_path / "a.pot"
    run("distill", model, "-f", book, "-o", pot, *POT, "--system", "Be kind.")
    code, out, err = run("info", pot)
    assert (code, err) == (0, "")
    for part in (
        "LlamaForCausalLM",
        "size 128, distil to 48",
        "infinipot; without a question: outliers",
        "sinks 0, recent 4",
        "distillations",
        "'Be kind.'",
    ):
        assert part in out
    about = json.loads(run("info", pot, "--json")[1])
    assert about["file_bytes"] == pot.stat().st_size
    assert about["config"]["pot_size"] == 128


def test_ctrl_c_while_waiting_for_text(run: Any, model: str, tmp_path: Path) -> None:
    pot = tmp_path / "a.pot"
    terminal = Terminal("distill", model, "-f", "-", *POT, "-o", str(pot), stdin=subprocess.PIPE)
    # more than is encoded at a time, so that something is read; then nothing comes
    terminal.child.stdin.write(TEXT.encode() * 8)
    terminal.child.stdin.flush()
    terminal.until("tok/s")
    time.sleep(0.5)
    terminal.child.send_signal(signal.SIGINT)
    code, _ = terminal.close()
    assert code == 130
    assert "infinipot: stopped after " in terminal.shown
    assert run("info", pot)[0] == 0


def test_a_preset_gives_way_to_what_is_given_beside_it(
    run: Any, model: str, book: str, tmp_path: Path
) -> None:
    from infinipot import pot_file

    def kept(*args: str) -> tuple[float, int | None, int | None]:
        pot = tmp_path / f"{len(args)}.pot"
        size = ("--pot-size", 128, "--chunk-tokens", 16)
        assert run("distill", model, "-f", book, *size, *args, "-o", pot)[0] == 0
        config = pot_file.read(pot)[1]["config"]
        return config["novelty"], config["pool"], config["distill_to"]

    assert kept() == (0.25, None, None)
    assert kept("--preset", "paper") == (0.5, 0, 64)
    assert kept("--preset", "paper", "--novelty", "0.1", "--distill-to", "32") == (0.1, 0, 32)
    code, out, error = run("generate", model, "-p", "Who?", "--preset", "papr")
    assert (code, out) == (2, "")
    one_line(error, "unknown preset 'papr'; did you mean 'paper'?")
    code, out, error = run("generate", model, "-p", "Who?", "--preset", "snapkv")
    assert (code, out) == (2, "")
    one_line(error, "unknown preset 'snapkv'", "it is a policy, so give it as the policy")


def test_a_missing_option_is_explained(run: Any) -> None:
    code, out, error = run("needle", "smollm2")
    assert (code, out) == (2, "")
    one_line(error, "Missing option '-o' / '--out' FOLDER: Where results go")
    one_line(run("study")[2], "Missing argument 'NAME': catalyst, novelty")


def test_the_help_of_preset_names_all() -> None:
    from infinipot.cli.options import POT as OPTIONS
    from infinipot.config import PRESETS

    (option,) = [option for option in OPTIONS if option.name == "preset"]
    text = option.annotation.__metadata__[0].help
    assert all(f"{name}:" in text for name in PRESETS)


def test_weights_of_layers_as_a_list_in_a_config_file(
    run: Any, model: str, book: str, tmp_path: Path
) -> None:
    config = tmp_path / "c.yaml"
    pots = [tmp_path / f"{n}.pot" for n in range(2)]
    config.write_text("layer_budget: [2, 1.5]\n")
    assert run("distill", model, "-f", book, *POT, "-o", pots[0], "--config", config)[0] == 0
    assert run("distill", model, "-f", book, *POT, "-o", pots[1], "--layer-budget", "2,1.5")[0] == 0
    configs = [json.loads(run("info", pot, "--json")[1])["config"] for pot in pots]
    assert configs[0] == configs[1] and configs[0]["layer_budget"] == [2.0, 1.5]
    from infinipot.cli.options import weights

    assert (weights("3,"), weights("uniform")) == ((3.0,), "uniform")  # a list of one, and a name
