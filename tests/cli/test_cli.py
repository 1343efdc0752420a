"""The command line, with a tiny model in a local folder."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny import make_tiny

from infinipot.cli import main
from infinipot.policies import POLICIES

TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
TEXT = (
    "The letter was hidden behind the clock by Anna, who told nobody about it until the winter came. "
    * 30
)
POT = ["--pot-size", "128", "--distill-to", "48", "--chunk-tokens", "16"]


def save_tiny(folder: Path) -> None:
    """A random Llama and a byte-level tokenizer with a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|start|>", "<|end|>"],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|end|>", chat_template=TEMPLATE
    )
    fast.save_pretrained(folder)
    tiny = make_tiny("llama", vocab=len(fast))
    tiny.lm_head.weight.data[:2] = 0  # it never ends an answer by itself
    tiny.save_pretrained(folder)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads only get in each other's way with a model as small as this."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny(folder)
    return str(folder)


@pytest.fixture
def book(tmp_path: Path) -> str:
    path = tmp_path / "book.txt"
    path.write_text(TEXT[:1200], "utf-8")
    return str(path)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a command line in this process. Returns exit code, stdout and stderr."""

    def ran(*args: object) -> tuple[int, str, str]:
        code = main([str(arg) for arg in args])
        return code, *capsys.readouterr()

    return ran


def process(*args: str, **options: Any) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "OMP_NUM_THREADS": "1",
        **options.pop("env", {}),
    }
    return subprocess.Popen(
        [sys.executable, "-m", "infinipot.cli", *args], env=environment, **options
    )


def one_line(error: str, *parts: str) -> None:
    assert error.startswith("infinipot: ")
    assert error.count("\n") == 1, error
    for part in parts:
        assert part in error


# ---------------------------------------------------------------- answers


def test_stdout_is_the_answer_and_nothing_else(run: Any, model: str, book: str) -> None:
    from infinipot import PotConfig, Session, load

    code, out, err = run(
        "generate", model, "-f", book, "-p", "Who hid it?", *POT, "--max-tokens", 12
    )
    assert code == 0
    session = Session(*load(model), PotConfig(pot_size=128, distill_to=48, chunk_tokens=16))
    session.append(TEXT[:1200], question="Who hid it?")
    assert out == session.ask("Who hid it?", max_tokens=12) + "\n"
    one_line(err, "in a pot of 128 (peak 128,", "distillations)", "a full cache", "tok/s")


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
    assert set(document) == {"text", "usage", "pot", "timings"}
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


# ---------------------------------------------------------------- texts


def test_stdin_is_read_like_a_file(
    run: Any, model: str, book: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["-p", "Who?", *POT, "--max-tokens", 4]
    out, into = os.pipe()
    os.write(into, Path(book).read_bytes())
    os.close(into)
    with open(out) as pipe:
        monkeypatch.setattr(sys, "stdin", pipe)
        code, text, _ = run("generate", model, "-f", "-", *options)
    assert (code, text) == run("generate", model, "-f", book, *options)[:2]


def test_characters_across_blocks_and_a_byte_order_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from infinipot.cli import source

    monkeypatch.setattr(source, "BLOCK_BYTES", 5)
    path = tmp_path / "text"
    path.write_bytes(b"\xef\xbb\xbf" + "häßlich, 𝄞 und 漢字".encode())
    assert "".join(source.Source(str(path))) == "häßlich, 𝄞 und 漢字"
    for bad, place in ((b"abcdef\xff", 6), (b"abcd\xe6\xbcx", 4), (b"abcdefg\xf0\x9d", 7)):
        path.write_bytes(bad)
        text = source.Source(str(path))
        assert "".join(text) == bad[:place].decode()
        assert f"byte {place} " in (text.problem or "")


def test_what_is_not_utf8_keeps_what_was_read(run: Any, model: str, tmp_path: Path) -> None:
    text = tmp_path / "latin1.txt"
    pot = tmp_path / "a.pot"
    text.write_bytes(TEXT[:1200].encode() + b"caf\xe9 " + TEXT.encode())
    code, out, err = run("generate", model, "-f", text, "-p", "Who?", *POT, "--save-pot", pot)
    assert (code, out) == (2, "")
    assert f"{text} is not UTF-8 at byte 1,203 (0xe9)" in err
    assert "pot saved" in err
    assert run("generate", model, "--pot", pot, "-p", "Who?", "--max-tokens", 2)[0] == 0


# ---------------------------------------------------------------- pots


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


def test_info(run: Any, model: str, book: str, tmp_path: Path) -> None:
    pot = tmp_path / "a.pot"
    run("distill", model, "-f", book, "-o", pot, *POT, "--system", "Be kind.")
    code, out, err = run("info", pot)
    assert (code, err) == (0, "")
    for part in (
        "LlamaForCausalLM",
        "size 128, distil to 48",
        "sinks 0, recent 4, pool 7, pool_mode avg",
        "distillations",
        "'Be kind.'",
    ):
        assert part in out
    about = json.loads(run("info", pot, "--json")[1])
    assert about["file_bytes"] == pot.stat().st_size
    assert about["config"]["pot_size"] == 128


def test_policies(run: Any) -> None:

    code, out, _ = run("policies")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == list(POLICIES)


# ---------------------------------------------------------------- bad use


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (
            ["generate", "MODEL", "-p", "x", "--policy", "infinipto"],
            ["unknown policy 'infinipto'; did you mean 'infinipot'?"],
        ),
        (
            ["generate", "MODEL", "-p", "x", "--novelty", "2"],
            ["novelty=2.0 is not allowed: it must be between 0 and 1"],
        ),
        (
            ["generate", "MODEL", "-p", "x", "--pot-size", "many"],
            ["'--pot-size'", "'many' is not a whole number"],
        ),
        (["generate", "MODEL", "-p", "x", "--pot-sise", "9"], ["--pot-sise", "--pot-size"]),
        (
            [
                "generate",
                "MODEL",
                "-p",
                "x",
                "-f",
                "BOOK",
                "--pot-size",
                "64",
                "--distill-to",
                "60",
            ],
            ["pot_size=64 leaves no room"],
        ),
        (["generate", "MODEL", "-p", "x", "-f", "no/such"], ["there is no file no/such"]),
        (["generate", "MODEL", "-p", "x", "-f", "."], ["cannot read ."]),
        (["generate", "MODEL", "-p", "x", "--pot", "no/such"], ["there is no file no/such"]),
        (["generate", "MODEL", "-p", "x", "--pot", "BOOK"], ["is not a readable pot file"]),
        (["generate", "MODEL", "-p", "x", "--save-pot", "no/such"], ["there is no folder"]),
        (["generate", "MODEL", "-p", "x", "--device", "abacus"], ["abacus"]),
        (["generate", "MODEL", "-p", "x", "--dtype", "float23"], ["unknown dtype 'float23'"]),
        (
            ["generate", "MODEL", "-p", "x", "--system", "a", "--raw"],
            ["--system needs the chat template"],
        ),
        (["generate", "MODEL"], ["nothing to read"]),
        (["generate", "./no/model", "-p", "x"], ["there is no folder ./no/model"]),
        (["generate"], ["MODEL"]),
        (["genrate"], ["No such command 'genrate'"]),
        (
            ["distill", "MODEL", "-f", "BOOK", "-o", "x.pot", "--catalyst", "question"],
            ["give one with -p"],
        ),
        (["distill", "MODEL", "-f", "/dev/null", "-o", "x.pot"], ["/dev/null is empty"]),
        (["chat", "MODEL", "-f", "-"], ["where the messages come from"]),
        (
            ["chat", "./no/model", "--prefill", "whole"],
            ["prefill whole distils once for each answer", "ask with generate"],
        ),
        (["info", "no/such"], ["there is no file no/such"]),
    ],
)
def test_bad_use(run: Any, model: str, book: str, args: list[str], parts: list[str]) -> None:
    code, out, err = run(*[{"MODEL": model, "BOOK": book}.get(arg, arg) for arg in args])
    assert (code, out) == (2, ""), err
    one_line(err, *parts)
    assert not Path("x.pot").exists()


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


# ---------------------------------------------------------------- where options come from


def test_flag_beats_environment_beats_config_beats_default(
    run: Any, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "c.yaml"
    ask = ["generate", model, "-p", "x", "--max-tokens", 1, "--json"]

    def size(*args: object) -> int:
        return int(json.loads(run(*ask, *args)[1])["pot"]["size"])

    assert size() == 2048
    config.write_text(
        "pot-size: 512\nnovelty: 1\nstop: [zebra crossing]\ncontext_reset: no\nsystem:\n"
    )
    assert size("--config", config) == 512
    monkeypatch.setenv("INFINIPOT_CONFIG", str(config))
    assert size() == 512
    monkeypatch.setenv("INFINIPOT_POT_SIZE", "256")
    assert size() == 256
    assert size("--pot-size", 128) == 128


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("pot_sise: 5", "unknown option 'pot_sise'; did you mean 'pot_size'?"),
        ("pot_size: [5]", "pot_size must be one value"),
        ("layer_budget: [1, two]", "'two' is not a number (from layer_budget in the config file)"),
        ("layer_budget: [1, 2, 3]", "layer_budget has 3 weights, but the model has 2 layers"),
        ("layer_budget: []", "layer_budget must be one value, not []"),
        ("layer_budget: {1: 2}", "layer_budget must be one value"),
        ("pot_size: 5.5", "'5.5' is not a whole number (from pot_size in the config file)"),
        ("- 5", "must consist of lines like"),
        ("a: [", "cannot use the config file"),
    ],
)
def test_config_files_that_cannot_be_used(
    run: Any, model: str, tmp_path: Path, content: str, part: str
) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(content)
    code, _, err = run("generate", model, "-p", "x", "--config", config)
    assert code == 2
    one_line(err, part)


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


def test_old_names_of_options_go_on_working(
    run: Any, model: str, book: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As flags, in the environment, in config files; what they are called now is said."""
    config = tmp_path / "c.yaml"
    config.write_text("begun: The answer is\n")
    monkeypatch.setenv("INFINIPOT_PERSIST", "0.5")
    pot = tmp_path / "a.pot"
    code, _, err = run(
        "distill", model, "-f", book, *POT, "-o", pot, "--pool-kind", "max", "--config", config
    )
    assert code == 0
    for part in (
        "--pool-kind is called pool-mode now",
        "INFINIPOT_PERSIST is called score-memory",
        "begun in the config file is called answer-prefix",
    ):
        assert part in err
    options = json.loads(run("info", pot, "--json")[1])["config"]
    assert (options["pool_mode"], options["score_memory"], options["answer_prefix"]) == (
        "max",
        0.5,
        "The answer is",
    )
    monkeypatch.delenv("INFINIPOT_PERSIST")
    one_line(
        run("generate", model, "-p", "x", "--policy", "streaming", "--pool-kind", "max", "--quiet")[
            2
        ],
        "--pool-kind does nothing with policy",
    )
    for gone in (
        ["--coverage", "0.5"],
        ["--distill-to", "auto"],
        ["--layer-budget", "pyramid"],
        ["--catalyst", "general-1"],
    ):
        code, _, err = run("generate", "./no/model", "-p", "x", *gone)
        assert code == 2
        one_line(err, "gone")


# ---------------------------------------------------------------- options that would do nothing


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (
            ["--policy", "streaming", "--novelty", "0.3"],
            ["--novelty does nothing with policy streaming", "(infinipot)"],
        ),
        (["--group", "4"], ["--group does nothing with policy infinipot", "(self_extend)"]),
        (["--window", "8"], ["--window does nothing with policy infinipot", "(tova, snapkv)"]),
        (["--policy", "full", "--pot-size", "64"], ["--pot-size does nothing with policy full"]),
        (["--policy", "truncate", "--sinks", "4"], ["--sinks does nothing with policy truncate"]),
        (["--policy", "sirllm", "--pool", "7"], ["--pool does nothing with policy sirllm"]),
        (
            ["--policy", "h2o", "--catalyst", "general"],
            ["--catalyst does nothing with policy h2o", "(infinipot, kvzip)"],
        ),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(
    run: Any, args: list[str], parts: list[str]
) -> None:
    for command in (["generate", "./no/model", "-p", "x"], ["bench", "./no/model"]):
        code, out, err = run(*command, *args)
        assert (code, out) == (2, "")
        one_line(err, *parts, "leave it out")


def test_useless_options_from_the_environment_and_the_config_file(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("neighbours: 9\n")
    ask = ["generate", "./no/model", "-p", "x"]
    one_line(
        run(*ask, "--config", config)[2],
        "neighbours in the config file does nothing with policy infinipot",
    )
    monkeypatch.setenv("INFINIPOT_GROUP", "4")
    one_line(run(*ask)[2], "INFINIPOT_GROUP does nothing with policy infinipot")
    one_line(
        run(*ask, "--policy", "self_extend", "--neighbours", 9)[2], "there is no folder ./no/model"
    )


def test_of_several_policies_one_must_use_an_option(run: Any, tmp_path: Path) -> None:
    needle = [
        "needle",
        "./no/model",
        "-o",
        tmp_path / "out",
        "--haystack",
        "filler",
        "--lengths",
        300,
        "--pot-size",
        128,
    ]
    code, _, err = run(*needle, "--policy", "streaming,h2o", "--novelty", 0.3)
    assert code == 2
    one_line(err, "--novelty does nothing with policy streaming or h2o", "(infinipot)")
    one_line(
        run(*needle, "--policy", "streaming,infinipot:novelty=0,tova:window=3:novelty=0.1")[2],
        "policy 'tova' has no option 'novelty'",
    )
    for policies in ("streaming,infinipot", "full,infinipot:novelty=0"):
        one_line(
            run(*needle, "--policy", policies, "--novelty", 0.3)[2], "there is no folder ./no/model"
        )


def test_a_server_takes_what_its_policy_uses(run: Any) -> None:
    pytest.importorskip("fastapi")
    serve = ["serve", "./no/model", "--port", 0, "--max-sessions", 1]
    one_line(run(*serve[:-2], "--group", 4)[2], "--group does nothing with policy infinipot")
    one_line(
        run(*serve[:-2], "--policy", "streaming", "--novelty", 0.3)[2],
        "--novelty does nothing with policy streaming",
    )
    one_line(run(*serve, "--novelty", 0.3)[2], "max-sessions=1")  # refused for that alone


@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_refused_would_have_done_nothing(policy: str) -> None:
    """The same entries, and the same logits, whatever a refused option says."""
    import torch
    from helpers import CATALYST, kept, random_ids
    from test_known_faults import CHANGES

    from infinipot import PotConfig, Session
    from infinipot.config import matters
    from infinipot.policies import UnknownOption

    changes = {
        **CHANGES,
        "pot_size": 64,
        "window": 5,
        "pool_mode": "max",
        "prefill": "whole",
        "group": 2,
        "neighbours": 16,
    }
    grown = make_tiny("llama", layers=3)

    def read(**options: Any) -> tuple[Any, Any]:
        settings = {"pot_size": 96, "policy": policy, **options}
        if matters("catalyst", POLICIES[policy]):
            # kvzip's own catalyst is a text, for which there is no tokenizer
            settings = {"catalyst": "question", **settings}
        session = Session(grown, None, PotConfig(**settings))
        session.append(random_ids(200), question=CATALYST)
        return kept(session), session.logits

    places, logits = read()
    refused = [name for name in changes if not matters(name, POLICIES[policy])]
    assert refused
    for name in refused:
        if name not in {field.name for field in dataclasses.fields(PotConfig)}:
            with pytest.raises(UnknownOption, match=f"policy '{policy}' has no option '{name}'"):
                read(**{name: changes[name]})
            continue
        again, other = read(**{name: changes[name]})
        assert again == places and torch.equal(other, logits), name


# ---------------------------------------------------------------- real processes


def test_help_is_fast() -> None:
    took = []
    for _ in range(3):
        started = time.monotonic()
        child = process("--help", stdout=subprocess.PIPE)
        out, _ = child.communicate(timeout=60)
        took.append(time.monotonic() - started)
        assert child.returncode == 0
    for name in ("generate", "chat", "distill", "info", "policies"):
        assert name in out.decode()
    assert min(took) < 1


def test_defaults_in_the_help_are_those_of_the_dataclasses() -> None:
    from infinipot import PotConfig, Sampling
    from infinipot.checks import RENAMED
    from infinipot.cli.options import DEFAULTS, SAMPLING, dataclass_defaults
    from infinipot.cli.options import POT as OPTIONS

    fields = [
        field
        for kind in (PotConfig, Sampling, *POLICIES.values())
        for field in dataclasses.fields(kind)
    ]
    defaults: dict[str, set[Any]] = {}
    for field in fields:
        defaults.setdefault(field.name, set()).add(field.default)
    same = {
        name: values for name, values in defaults.items() if len(values) == 1 and name != "policy"
    }
    for name, value in dataclass_defaults().items():
        assert same[name] == {value}, name
    assert DEFAULTS["policy"] == PotConfig().policy.name
    names = {"system", "raw", "preset", "coverage", *RENAMED}
    assert set(defaults) | names == {option.name for option in (*OPTIONS, *SAMPLING)}


def test_version(run: Any) -> None:
    from infinipot import __version__

    assert run("--version")[:2] == (0, f"infinipot {__version__}\n")


def test_a_closed_stdout_ends_quietly(model: str) -> None:
    child = process(
        "generate",
        model,
        "-p",
        "Hello",
        "--max-tokens",
        "4",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    child.stdout.close()
    assert child.stderr.read() == b""
    assert child.wait(60) == 141


def test_torchao_is_hushed_and_nothing_else(run: Any, caplog: pytest.LogCaptureFixture) -> None:
    import logging

    assert run("--version")[0] == 0
    logging.getLogger("torchao").warning("Failed to load %s: no such symbol", "_C.so")
    logging.getLogger("torch.utils._pytree").warning(
        "Calling register_constant() on Enum subclasses is deprecated"
    )
    assert caplog.messages == []
    logging.getLogger("torchao").warning("something else")
    logging.getLogger("torch.utils._pytree").warning("%s is deprecated", "another thing")
    assert caplog.messages == ["something else", "another thing is deprecated"]


class Terminal:
    """A child whose stdin and stderr are a terminal; what it shows there is gathered."""

    def __init__(self, *args: str, stdin: Any = None) -> None:
        self.master, slave = pty.openpty()
        self.child = process(*args, stdin=slave if stdin is None else stdin, stdout=subprocess.PIPE, stderr=slave,
                             start_new_session=True, env={"TERM": "xterm"})  # fmt: skip
        os.close(slave)
        self.shown = ""

    def until(self, text: str, seconds: float = 90) -> None:
        end = time.monotonic() + seconds
        while text not in self.shown:
            assert time.monotonic() < end, self.shown
            if select.select([self.master], [], [], 0.1)[0]:
                try:
                    self.shown += os.read(self.master, 4096).decode(errors="replace")
                except OSError:  # the child is gone
                    assert text in self.shown, self.shown
                    return

    def close(self) -> tuple[int, str]:
        out = self.child.stdout.read().decode()
        code = self.child.wait(60)
        while select.select([self.master], [], [], 0.1)[0]:
            try:
                data = os.read(self.master, 4096)
            except OSError:
                break
            if not data:
                break
            self.shown += data.decode(errors="replace")
        os.close(self.master)
        return code, out


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


def test_ctrl_c_while_starting(model: str) -> None:
    terminal = Terminal("generate", model, "-p", "Who?")
    terminal.until("starting")
    terminal.child.send_signal(signal.SIGINT)
    code, out = terminal.close()
    assert (code, out) == (130, "")
    assert terminal.shown.endswith("infinipot: interrupted\r\n")
    assert "Traceback" not in terminal.shown


def test_chat_in_a_terminal(model: str, tmp_path: Path) -> None:
    pot = tmp_path / "a.pot"
    terminal = Terminal("chat", model, *POT, "--max-tokens", "100000", "--save-pot", str(pot))
    terminal.until("> ")
    os.write(terminal.master, b"Hello\n")
    time.sleep(1)
    terminal.child.send_signal(signal.SIGINT)  # stops the answer
    os.write(terminal.master, b"/stats\n")
    terminal.until("in a pot of 128")
    os.write(terminal.master, b"/nothing\n")
    terminal.until("/nothing is not known")
    os.write(terminal.master, b"/quit\n")
    code, out = terminal.close()
    assert code == 0
    assert out.strip()
    assert f"pot saved in {pot}" in terminal.shown


def test_chat_with_piped_messages(
    run: Any, model: str, monkeypatch: pytest.MonkeyPatch, book: str, tmp_path: Path
) -> None:
    from infinipot import PotConfig, Session, load

    monkeypatch.setattr(
        sys, "stdin", io.StringIO(f"Hello\n\nWho are you?\n/save {tmp_path / 'x.pot'}\n")
    )
    code, out, err = run("chat", model, "-f", book, *POT, "--max-tokens", 5)
    session = Session(*load(model), PotConfig(pot_size=128, distill_to=48, chunk_tokens=16))
    session.append(TEXT[:1200])
    first = session.chat("Hello", max_tokens=5)
    second = session.chat("Who are you?", max_tokens=5)
    assert (code, out) == (0, f"{first}\n{second}\n")
    assert "> " not in err
    assert (tmp_path / "x.pot").exists()


def test_quiet_in_a_config_file_on_a_terminal_shows_nothing(tmp_path: Path) -> None:
    """The embedded model has a bar for its weights, which other libraries draw."""
    from infinipot.model.load import embedded

    try:
        embedded()
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    (tmp_path / "c.yaml").write_text("quiet: true\n")
    terminal = Terminal(
        "generate",
        "smollm2",
        "-p",
        "Hello",
        "--max-tokens",
        "2",
        "--config",
        str(tmp_path / "c.yaml"),
    )
    code, out = terminal.close()
    assert (code, terminal.shown) == (0, "")
    assert out.strip()


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
