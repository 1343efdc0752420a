"""A policy in a package of its own runs everywhere, and nothing imports it but who names it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import kept, random_ids
from tiny import make_tiny, make_tokenizer

from infinipot import PotConfig, PotFileError, Session, generate, pot_file
from infinipot.cli import main
from infinipot.config import matters
from infinipot.eval.methods import methods
from infinipot.policies import POLICIES, policy_of

SOURCE = '''
from dataclasses import dataclass

from infinipot.policies import Policy
from infinipot.policies.options import Ends


@dataclass(frozen=True, kw_only=True)
class Ruler(Ends):
    """Places divisible by large powers of two."""

    sinks: int = 2
    alpha: float = 0.5
    """How much powers of two count."""
    marks: tuple[int, ...] = ()

    def score(self, seen):
        place = seen.index + 1
        return self.alpha * (place & -place).double()


class Plain(Policy):
    def score(self, seen):
        return seen.index.double()
'''
SPEC = "strangers.rulers:Ruler(alpha=0.25)"
POT = ["--pot-size", 160, "--distill-to", 64]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "elsewhere" / "strangers"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "rulers.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(folder.parent))
    yield folder
    forget()


def forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "strangers"]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model")
    tokenizer = make_tokenizer()
    make_tiny("llama", vocab=len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Any:
    def call(*args: object) -> tuple[int, str, str]:
        code = main([str(arg) for arg in args])
        out, err = capfd.readouterr()
        return code, out, err

    return call


def test_it_is_named_by_its_place(package: Path) -> None:
    policy = policy_of(SPEC)
    assert (policy.name, policy.summary, policy.alpha) == (
        "Ruler",
        "Places divisible by large powers of two",
        0.25,
    )
    assert policy_of("strangers.rulers:Ruler").alpha == 0.5
    assert policy_of("strangers.rulers:Ruler(marks=(1, 2), alpha=-1)").marks == (1, 2)
    for text, why in (
        (
            "strangers.rulers:Ruler(beta=1)",
            "policy 'Ruler' has no option 'beta' .its options: sinks, recent, alpha, marks",
        ),
        (
            "strangers.rulers:Ruler(0.3)",
            r"each option needs its name, in parentheses, as in Class\(alpha=0.3\)",
        ),
        ("strangers.rulers:Ruler(alpha=print(1))", "cannot be read"),
        ("strangers.rulers:Ruler(alpha=1)(2)", "cannot be read"),
        ("strangers.rulers:Rule", "there is no Rule in strangers.rulers"),
        ("strangers.nothing:Ruler", "cannot import strangers.nothing"),
        ("pathlib:Path", "pathlib:Path is not a subclass of infinipot.policies.Policy"),
        ("rulr", "unknown policy 'rulr'"),
        ("snapkv(windw=1)", "policy 'snapkv' has no option 'windw' .its options: .*window"),
        (
            "strangers.rulers:Ruler(alpha=1",
            r"the closing parenthesis is missing, so write 'strangers.rulers:Ruler\(alpha=1\)'",
        ),
        (
            "snapkv:window=16",
            r"options of one policy stand in parentheses, so write 'snapkv\(window=16\)'",
        ),
    ):
        with pytest.raises(ValueError, match=why):
            policy_of(text)
    assert policy_of("snapkv(window=16)") == POLICIES["snapkv"](window=16)
    for text in (
        SPEC,
        "strangers.rulers:Ruler",
    ):  # not in a program: what comes from files and requests imports nothing
        with pytest.raises(ValueError, match="unknown policy"):
            PotConfig(policy=text)
    config = PotConfig(policy=policy, pot_size=96, alpha=0.75)
    assert (config.alpha, config.options["policy"], config.replace(recent=3).policy.recent) == (
        0.75,
        "Ruler",
        3,
    )
    assert matters("alpha", policy)
    assert not matters("novelty", policy)
    with pytest.raises(TypeError, match="its options must be hashable"):
        PotConfig(policy=type(policy)(marks=[1]))
    with pytest.raises(TypeError, match="give Ruler.., an object"):
        PotConfig(policy=type(policy))  # type: ignore[arg-type]


def test_a_class_without_options_will_do(package: Path) -> None:
    plain = policy_of("strangers.rulers:Plain")
    model = make_tiny("llama")
    mine, ours = (
        Session(model, None, PotConfig(pot_size=64, distill_to=20, policy=policy))
        for policy in (plain, "sliding_window")
    )
    for session in (mine, ours):
        session.append(random_ids(200))
    assert kept(mine) == kept(ours)


def test_batches_answer_as_alone(package: Path) -> None:
    model = make_tiny("llama")
    options = {
        "custom_generate": generate,
        "max_new_tokens": 4,
        "do_sample": False,
        "pad_token_id": 0,
    }
    pot = PotConfig(policy=policy_of(SPEC), pot_size=40, distill_to=16)
    rows = [random_ids(90), random_ids(90, seed=9)]
    batch = model.generate(torch.tensor(rows), pot=pot, **options)
    for row, answer in zip(rows, batch, strict=True):
        assert (
            answer.tolist() == model.generate(torch.tensor([row]), pot=pot, **options)[0].tolist()
        )


def test_a_file_never_imports_it(package: Path, tmp_path: Path) -> None:
    model, path = make_tiny("llama"), tmp_path / "a.pot"
    policy = policy_of("strangers.rulers:Ruler(alpha=0.25, marks=(1, 2))")
    session = Session(model, None, PotConfig(policy=policy, pot_size=64, distill_to=20))
    session.append(random_ids(200))
    session.save(path)
    forget()
    with pytest.raises(
        PotFileError,
        match=r"policy 'Ruler', strangers.rulers:Ruler, which is not infinipot's own.*pass that policy",
    ):
        Session.load(path, model)
    assert "strangers.rulers" not in sys.modules
    for passed in (POLICIES["h2o"], POLICIES["h2o"]()):
        with pytest.raises(PotFileError, match="never imports code"):
            Session.load(path, model, policy=passed)
    again = policy_of("strangers.rulers:Ruler(alpha=0.25, marks=(1, 2))")
    with pytest.raises(PotFileError, match="was filled with .*alpha=0.25.*, not with .*alpha=0.5"):
        Session.load(path, model, policy=policy_of("strangers.rulers:Ruler"))
    for passed in (again, type(again)):
        twin = Session.load(path, model, policy=passed)
        assert (twin.config.alpha, twin.config.marks) == (0.25, (1, 2))
        fork = session.fork()
        for one in (fork, twin):
            one.append(random_ids(100, seed=3))
        assert kept(twin) == kept(fork) != kept(session)
    header = pot_file.describe(path)
    assert header["config"]["policy_class"] == "strangers.rulers:Ruler"


def test_options_that_no_file_can_keep(package: Path, tmp_path: Path) -> None:
    session = Session(
        make_tiny("llama"),
        None,
        PotConfig(policy=policy_of("strangers.rulers:Ruler(marks=(b'x',))"), pot_size=64),
    )
    session.append(random_ids(20))
    with pytest.raises(PotFileError, match="cannot save the options of policy 'Ruler'"):
        session.save(tmp_path / "a.pot")


def test_the_command_line_reads_with_it(
    package: Path, model: str, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, pot = tmp_path / "book.txt", tmp_path / "a.pot"
    text.write_text("The ship left at dawn, and nobody saw it. " * 30)
    ask = ["generate", model, "-p", "Who?", "--max-tokens", 4, "--json"]
    code, out, err = run(*ask, "-f", text, *POT, "--policy", SPEC, "--save-pot", pot)
    assert code == 0, err
    assert json.loads(out)["pot"]["policy"] == "Ruler"
    code, _, err = run(*ask, "--pot", pot)
    assert code == 2
    assert "--policy strangers.rulers:Ruler" in err
    assert run(*ask, "--pot", pot, "--policy", "strangers.rulers:Ruler(alpha=0.5)")[0] == 2
    code, again, err = run(*ask, "--pot", pot, "--policy", SPEC)
    assert code == 0, err
    assert json.loads(again)["text"] == json.loads(out)["text"]
    assert "Ruler, alpha 0.25" in run("info", pot, "--policy", "strangers.rulers:Ruler")[1]
    assert run("info", pot)[0] == 2
    code, _, err = run(*ask, *POT, "--policy", SPEC, "--novelty", 0.5)
    assert code == 2
    assert "--novelty does nothing with policy Ruler" in err
    forget()
    monkeypatch.chdir(package.parent)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place != str(package.parent)])
    assert run("policies", SPEC)[0] == 0, "a module in the current folder"


def test_what_it_is_can_be_shown(package: Path, run: Any) -> None:
    code, out, _ = run("policies", "strangers.rulers:Ruler")
    assert code == 0
    for part in (
        "Ruler: Places divisible",
        "alpha = 0.5",
        "How much powers of two count.",
        "sinks = 2",
        "recent = None",
    ):
        assert part in out
    code, out, _ = run("policies", "infinipot")
    assert code == 0
    for part in (
        "arXiv 2410.01518",
        "novelty = 0.25",
        "Share for novelty",
        "answer_prefix = None",
        "The first words of an answer",
    ):
        assert part in out
    assert "no options" in run("policies", "full")[1]
    code, _, err = run("policies", "infinipto")
    assert code == 2
    assert "did you mean 'infinipot'" in err


def test_labels_are_split_outside_parentheses(package: Path) -> None:
    listed = methods(
        f"infinipot:novelty=0,strangers.rulers:Ruler(alpha=0.5, marks=(1, 2)):pot_size=96,{SPEC},h2o",
        {"pot_size": 64, "sinks": 1},
    )
    assert [one.label for one in listed] == [
        "infinipot:novelty=0",
        "strangers.rulers:Ruler(alpha=0.5, marks=(1, 2)):pot_size=96",
        SPEC,
        "h2o",
    ]
    assert [one.config.pot_size for one in listed] == [64, 96, 64, 64]
    assert listed[1].options == {"pot_size": 96, "distill_to": 48, "marks": [1, 2], "sinks": 1}
    assert listed[2].options == {"pot_size": 64, "distill_to": 32, "alpha": 0.25, "sinks": 1}


def test_errors_say_where_its_options_belong(package: Path, run: Any, tmp_path: Path) -> None:
    prompt = ("generate", "smollm2", "-p", "Who?")
    code, _, err = run(*prompt, "--policy", "strangers.rulers:Ruler", "--alpha", 0.3)
    assert code == 2
    assert "No such option: --alpha" in err
    assert "in its parentheses: --policy 'strangers.rulers:Ruler(alpha=...)'" in err
    assert "parentheses" not in run(*prompt, "--policy", "infinipot", "--alpha", 0.3)[2]
    code, _, err = run(*prompt, "--policy", "strangers.rulers:Ruler(beta=0.3)")
    assert code == 2
    assert "policy 'Ruler' has no option 'beta' (its options: sinks, recent, alpha, marks)" in err
    label = "full,strangers.rulers:Ruler(alpha=0.3"
    code, _, err = run("needle", "smollm2", "--policy", label, "-o", tmp_path / "out")
    assert code == 2
    assert "closing parenthesis is missing, so write 'strangers.rulers:Ruler(alpha=0.3)'" in err


def test_evaluations_run_with_it(package: Path, model: str, run: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "out"
    needle = [
        "needle",
        model,
        "--haystack",
        "filler",
        "--lengths",
        400,
        "--depths",
        0.5,
        "--trials",
        1,
        "--max-tokens",
        2,
        *POT,
    ]
    code, _, err = run(*needle, "--policy", f"streaming,{SPEC}", "-o", out)
    assert code == 0, err
    records = [json.loads(line) for line in (out / "needle.jsonl").read_text().splitlines()]
    assert {record["method"] for record in records} == {"streaming", SPEC}
    assert {record["distillations"] > 0 for record in records} == {True}
    text = tmp_path / "book.txt"
    text.write_text("The ship left at dawn, and nobody saw it. " * 20)
    code, _, err = run(
        "eval", "perplexity", model, "-f", text, "--policy", SPEC, *POT, "-o", out, "--every", 128
    )
    assert code == 0, err
    assert json.loads((out / "perplexity.jsonl").read_text().splitlines()[0])["method"] == SPEC


def test_a_server_has_it_for_its_own(package: Path) -> None:
    pytest.importorskip("fastapi")
    from infinipot.server.errors import APIError
    from infinipot.server.requests import config_of
    from infinipot.server.schema import PotOptions

    base = PotConfig(policy=policy_of(SPEC), pot_size=128)
    assert config_of(PotOptions(), base) == base
    assert config_of(PotOptions(policy="Ruler", recent=3), base).policy.recent == 3
    assert config_of(PotOptions(policy="h2o"), base).policy == POLICIES["h2o"]()
    for wrong in ({"policy": SPEC}, {"novelty": 0.5}):
        with pytest.raises(APIError):
            config_of(PotOptions(**wrong), base)
