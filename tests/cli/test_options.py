"""Where options come from: flags, the environment, a config file, defaults."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from commands import POT, one_line

from infinipot.policies import POLICIES


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
        ("pot_size: 5.5", "'5.5' is not a whole number: write 4096, 4k or 1m (from pot_size in"),
        ("max_sesions: 8", "unknown option 'max_sesions'; did you mean 'max_sessions'?"),
        ("- 5", "must consist of lines like"),
        ("pot_size: 64\nseed: 1\npot_size: 128", "pot_size stands there twice: leave one"),
        ("pot_size: 64\npot-size: 128", "pot_size stands there twice, with - and with _"),
        ("seed: yes", "True is not a whole number (from seed in the config file)"),
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


def test_defaults_in_the_help_are_those_of_the_dataclasses() -> None:
    from infinipot import PotConfig, Sampling
    from infinipot.checks import RENAMED
    from infinipot.cli.option import DEFAULTS, dataclass_defaults
    from infinipot.cli.options import POT as OPTIONS
    from infinipot.cli.options import SAMPLING

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
    names = {"system", "raw", "special_tokens", "preset", "coverage", *RENAMED}
    assert set(defaults) | names == {option.name for option in (*OPTIONS, *SAMPLING)}
