"""Writes docs/options.md from the dataclasses that hold the options.

    python docs/make_options.py [--check]

--check writes nothing and fails if the file differs from the code.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from infinipot import PotConfig, Sampling
from infinipot.catalysts import ANSWER_PREFIXES, KINDS, PROMPTS
from infinipot.checks import RENAMED
from infinipot.cli.options import POT, SAMPLING
from infinipot.config import PRESETS
from infinipot.policies import POLICIES, Policy
from infinipot.policies.registry import documentation

TARGET = Path(__file__).parent / "options.md"
HEAD = """\
# Options

Made from the code by `python docs/make_options.py`.

`PotConfig` takes the options of the pot and of its policy: `PotConfig(pot_size=1024, novelty=0.5)`.
The command line has a flag for each. The environment (`INFINIPOT_POT_SIZE=1024`) and a file
(`--config`) can set options, too. An option that the policy does not have is refused.

Sizes are entries (tokens) for each layer and KV head.
"""
FORMULAS = """\
Some defaults depend on sizes. In their formulas `budget` is the number of entries that a layer keeps.
With `layer_budget="uniform"` it is `distill_to`. `question_known` says that the catalyst is the
question, and that neither `pool` nor `pool_mode` is set. `//` divides and rounds down.
"""
COLUMNS = "| option | meaning | default | flag |\n|---|---|---|---|"
SAME = "as above"


def document() -> str:
    parts = [HEAD, *pot(), *policies(), *presets(), *catalysts(), *sampling(), *old_names()]
    return "\n".join(parts)


def pot() -> Iterator[str]:
    yield "## The pot\n"
    meanings = texts(PotConfig)
    options = dataclasses.fields(PotConfig)
    yield table(row(field.name, meanings[field.name], field.default) for field in options)


def policies() -> Iterator[str]:
    """The options that several policies share, once; then each policy with its own."""
    yield "## Policies\n"
    yield f"`infinipot policies NAME` shows the options of one policy.\n\n{FORMULAS}"
    yield "### Options of several policies\n"
    for base in shared_classes():
        users = [name for name, policy in POLICIES.items() if issubclass(policy, base)]
        yield f"Of {', '.join(users)}:\n"
        yield table(own_rows(base))
    for policy in POLICIES.values():
        yield f"### {policy.name}\n"
        yield policy_section(policy)


def shared_classes() -> list[type[Policy]]:
    """The classes of infinipot/policies/options.py, each after those it builds on."""
    classes = {
        base
        for policy in POLICIES.values()
        for base in policy.__mro__
        if base.__module__ == "infinipot.policies.options"
    }
    return sorted(classes, key=lambda base: (len(base.__mro__), base.__name__))


def policy_section(policy: type[Policy]) -> str:
    text = f"{policy.summary[0].upper()}{policy.summary[1:]}."
    if policy.paper:
        text += f" Paper: {policy.paper}."
    names = policy.options()
    if not names:
        return f"{text} It has no options.\n"
    text += f" Options: {', '.join(f'`{name}`' for name in names)}.\n"
    rows = [*own_rows(policy), *formula_rows(policy)]
    if not rows:
        return text
    return f"{text}\n{table(rows)}"


def own_rows(policy: type[Policy]) -> Iterator[str]:
    """The options that a class adds, and those whose default it changes."""
    meanings = documentation(policy)
    for field in dataclasses.fields(policy):
        if field.name in inspect.get_annotations(policy):
            yield row(field.name, meanings[field.name], field.default)


def formula_rows(policy: type[Policy]) -> Iterator[str]:
    """The defaults that this policy computes."""
    if "recent" in policy.options():
        yield row("recent", SAME, None, formula(policy.default_recent))
    if "pool" in policy.options():
        yield row("pool, pool_mode", SAME, None, formula(policy.default_smoothing))


def formula(method: Callable[..., Any]) -> str:
    """What a method returns, and on which conditions, as its source says."""
    (function,) = ast.parse(textwrap.dedent(inspect.getsource(method))).body
    assert isinstance(function, ast.FunctionDef)
    parameters = [argument.arg for argument in function.args.args[1:]]
    names = dict(zip(parameters, ("budget", "question_known"), strict=False))
    cases = []
    for line in function.body:
        if isinstance(line, ast.If) and isinstance(line.body[0], ast.Return) and not line.orelse:
            value = expression(line.body[0].value, names)
            cases.append(f"{value} if {expression(line.test, names)}")
        elif isinstance(line, ast.Return):
            cases.append(expression(line.value, names))
        elif not (isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)):
            raise ValueError(f"cannot write down {method.__qualname__}: {ast.unparse(line)}")
    if len(cases) == 1:
        return f"`{cases[0]}`"
    return ", ".join(f"`{case}`" for case in cases[:-1]) + f", else `{cases[-1]}`"


def expression(node: Any, names: dict[str, str]) -> str:
    text = ast.unparse(RenameParameters(names).visit(node)).replace("self.", "")
    if isinstance(node, ast.Tuple):
        return text.strip("()").replace("'", "")
    return text


class RenameParameters(ast.NodeTransformer):
    """Gives the parameters of a method the names that this page explains."""

    def __init__(self, names: dict[str, str]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self.names.get(node.id, node.id))


def presets() -> Iterator[str]:
    yield "## Presets\n"
    yield (
        'A preset sets several options: `PotConfig(preset="paper", pot_size=4096)`, `--preset paper`. '
        "Other options override it.\n"
    )
    lines = ["| preset | options |", "|---|---|"]
    for name, options in PRESETS.items():
        values = [f"`{option}={preset_value(option, value)}`" for option, value in options.items()]
        lines.append(f"| `{name}` | {', '.join(values)} |")
    yield "\n".join(lines) + "\n"


def preset_value(option: str, value: Any) -> str:
    if option == "distill_to":
        return f"{value} * pot_size"
    return repr(value)


def catalysts() -> Iterator[str]:
    yield "## Catalysts\n"
    yield (
        "`catalyst` names the prompt whose attention chooses the survivors. "
        "A text of several words is a prompt of your own.\n"
    )
    meanings = {
        "question": "The question itself.",
        "plain": "No prompt: the newest 32 tokens of the text are read once more.",
    }
    lines = ["| catalyst | prompt | `answer_prefix` |", "|---|---|---|"]
    for name in KINDS:
        prefix = ""
        if name in ANSWER_PREFIXES:
            prefix = f"`{ANSWER_PREFIXES[name]}`"
        lines.append(f"| `{name}` | {PROMPTS.get(name) or meanings[name]} | {prefix} |")
    yield "\n".join(lines) + "\n"


def sampling() -> Iterator[str]:
    yield "## Sampling\n"
    yield (
        "Options of an answer: `session.ask(question, max_tokens=64)`. "
        "The defaults are greedy decoding.\n"
    )
    meanings = {one.name: info(one).help.split(" [default")[0] for one in SAMPLING}
    meanings |= texts(Sampling)
    options = dataclasses.fields(Sampling)
    yield table(row(field.name, meanings[field.name], field.default) for field in options)


def old_names() -> Iterator[str]:
    yield "## Old names\n"
    yield "Old names work for one release, in code, flags and files. They print a warning.\n"
    lines = ["| old | new |", "|---|---|"]
    lines += [f"| `{old}` | `{new}` |" for old, new in RENAMED.items()]
    yield "\n".join(lines) + "\n"


# ---------------------------------------------------------------- rows


def table(rows: Any) -> str:
    return "\n".join([COLUMNS, *rows]) + "\n"


def row(name: str, text: str, default: Any, formula: str = "") -> str:
    """One option. Its text may end with the meaning of None, which is then the default."""
    meaning, _, unset = text.partition(" None: ")
    if formula:
        usual = formula
    elif default is None and unset:
        usual = unset.rstrip(".")
    elif default in (None, ()):
        usual = "none"
    else:
        usual = f"`{default_name(default)}`"
    if meaning.endswith(";"):
        meaning = meaning[:-1] + "."
    names = ", ".join(f"`{one}`" for one in name.split(", "))
    flags = ", ".join(f"`{flag}`" for one in name.split(", ") for flag in flags_of(one))
    cells = (names, meaning, usual, flags)
    escaped = [cell.replace("|", "\\|") for cell in cells]
    return f"| {' | '.join(escaped)} |"


def default_name(value: Any) -> str:
    if isinstance(value, Policy):
        return value.name
    return str(value)


def flags_of(name: str) -> list[str]:
    for parameter in (*POT, *SAMPLING):
        if parameter.name == name:
            option = info(parameter)
            texts = [
                text
                for text in (option.default, *(option.param_decls or ()))
                if isinstance(text, str)
            ]
            return [flag for text in texts for flag in text.split("/")]
    raise KeyError(f"no command has the option {name}")


def info(parameter: inspect.Parameter) -> Any:
    return parameter.annotation.__metadata__[0]


def texts(kind: type) -> dict[str, str]:
    """The text below each field of a dataclass, in one line."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(node, ast.ClassDef)
    return {
        ast.unparse(field.target): " ".join(str(text.value.value).split())
        for field, text in itertools.pairwise(node.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
    }


def main() -> int:
    text = document()
    if "--check" not in sys.argv:
        TARGET.write_text(text, "utf-8")
        return 0
    if TARGET.exists() and TARGET.read_text("utf-8") == text:
        return 0
    print("docs/options.md differs from the code: run python docs/make_options.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
