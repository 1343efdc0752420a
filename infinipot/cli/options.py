"""The options that commands share, declared once. Their defaults are those of the dataclasses they
fill."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from infinipot.checks import RENAMED
from infinipot.cli.console import BadUse, say
from infinipot.cli.policy_names import policy_named

if TYPE_CHECKING:
    from infinipot.config import PotConfig
    from infinipot.policies import Policy


PACKAGE = Path(__file__).parents[1]


def dataclass_defaults() -> dict[str, Any]:
    """The default of every option that has one, the same for all policies that have the option. It
    is read from the source, as importing it would import torch, which takes seconds."""
    found: dict[str, set[Any]] = {}
    for path in (
        PACKAGE / "config.py",
        *sorted({*(PACKAGE / "policies").glob("*.py")} - {PACKAGE / "policies" / "base.py"}),
    ):
        classes = [
            node
            for node in ast.parse(path.read_text("utf-8")).body
            if isinstance(node, ast.ClassDef) and node.decorator_list
        ]
        for field in (
            line for node in classes for line in node.body if isinstance(line, ast.AnnAssign)
        ):
            if isinstance(field.target, ast.Name) and isinstance(
                field.value, (ast.Constant, ast.Tuple)
            ):
                found.setdefault(field.target.id, set()).add(ast.literal_eval(field.value))
    return {name: values.pop() for name, values in found.items() if len(values) == 1}


DEFAULTS = {
    name: default for name, default in dataclass_defaults().items() if default not in (None, (), "")
} | {"policy": "infinipot"}


def whole(text: Any) -> int:
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a whole number") from None


def number(text: Any, what: str = "a number") -> float:
    try:
        if isinstance(text, bool):  # `yes` in a config file
            raise ValueError
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not {what}") from None


def whole_or_auto(text: Any) -> int | str:
    """`auto` is refused later, with a sentence that says what became of it."""
    if text == "auto":
        return "auto"
    return whole(text)


def number_or_once(text: Any) -> float | str:
    if text == "once":
        return "once"
    return number(text, "a number, or once")


def weights(text: Any) -> Any:
    """A name, or numbers with commas between, also behind the last."""
    if "," in text:
        return tuple(number(part) for part in text.removesuffix(",").split(","))
    return text


PARSERS: dict[Any, Callable[[Any], Any]] = {int: whole, float: number}
METAVARS = {int: "N", float: "X", str: "TEXT", list[str]: "TEXT", Path: "FILE"}


def option(
    name: str, kind: Any, help: str, *flags: str, env: bool = True, parser: Any = None, **more: Any
) -> inspect.Parameter:
    """One option. Its value is None if neither flag nor environment nor config file gives it."""
    if name in DEFAULTS and kind is not bool and "[default" not in help:
        help += f" [default: {DEFAULTS[name]}]"
    info = typer.Option(
        *(flags or (f"--{name.replace('_', '-')}",)),
        help=help,
        envvar=f"INFINIPOT_{name.upper()}" if env else None,
        show_envvar=False,
        show_default=False,
        parser=parser or PARSERS.get(kind),
        **{"metavar": None if kind is bool else METAVARS[kind], **more},
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind | None, info],
    )


def from_config(context: typer.Context, path: Optional[Path]) -> Optional[Path]:  # noqa: UP045
    """Make what a YAML file says the defaults, below flags and environment."""
    if path is None:
        return None
    import yaml

    from infinipot.checks import known

    try:
        content = yaml.safe_load(path.read_text("utf-8")) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as problem:
        raise BadUse(f"cannot use the config file {path}: {problem}") from problem
    if not isinstance(content, dict):
        raise BadUse(f"the config file {path} must consist of lines like `pot_size: 1024`")
    values: dict[str, Any] = {}
    for key, value in content.items():
        name = str(key).replace("-", "_")
        try:
            known("option", name, CONFIGURABLE)
        except ValueError as problem:
            raise BadUse(f"{path}: {problem}") from None
        if isinstance(value, list):
            items = value
        else:
            items = [value]
        if isinstance(value, dict) or (
            isinstance(value, list) and name != "stop" and not (value and name == "layer_budget")
        ):
            raise BadUse(f"{path}: {name} must be one value, not {value!r}")
        if value is not None:
            # text, to be read as a flag's would be
            texts = [item if isinstance(item, bool) else str(item) for item in items]
            if name == "stop":
                values[name] = texts
            elif isinstance(value, list):
                values[name] = "".join(f"{text}," for text in texts)
            else:
                values[name] = texts[0]
    context.default_map = values
    return path


POT = (
    option("pot_size", int, "Most entries (tokens) the pot ever holds."),
    option("distill_to", int, "Entries that survive a distillation. [default: half the pot; above 2,048 all but 1,024, at most 3/4]",
           parser=whole_or_auto),
    option("policy", str, "How survivors are chosen: a name (`infinipot policies` lists them), or a policy of your own, "
           "package.module:Class(option=value)."),
    option("preset", str, "paper: novelty 0.5, no pooling, nothing because it is new, as InfiniPot was published; facts: keeps single facts "
           "when the question is not known. Options given beside it count more."),
    option("novelty", float, "Share of the survivors chosen for novelty, 0 to 1; the others for what the catalyst attends to."),
    option("catalyst", str, "question, general, facts, unrelated, repeat, plain, or a prompt of your own. "
           "[default: the policy's, else the question if there is one, else general]"),
    option("answer_prefix", str, "First words of an answer, read behind the catalyst, which then looks for what follows. "
           "[default: the catalyst's]"),
    option("contrast", str, "Divide the catalyst's attention by a second prompt's, to discount tokens that every prompt attends to: unrelated, "
           "general, ..., or a prompt of your own."),
    option("context_reset", bool, "Positions start again at 0 after a distillation (default), or grow for ever.",
           "--context-reset/--no-context-reset"),
    option("sinks", int, "First entries that always stay. [default: the policy's]"),
    option("recent", int, "Newest entries that always stay. [default: the policy's]"),
    option("window", int, "How many newest tokens' attention counts (snapkv, tova). [default: the policy's]"),
    option("pool", int, "Smooth scores over this many slots, an odd number; 0 does not. [default: the policy's]"),
    option("pool_mode", str, "avg or max around an entry; trailing: the average of it and those before, so that what follows a strong entry "
           "stays. [default: the policy's]"),
    option("gqa", str, "How query heads that share a KV head vote: mean, max or sum."),
    option("shared_heads", bool, "All heads of a layer keep the same entries, or each its own. [default: the policy's]",
           "--shared-heads/--own-heads"),
    option("score_memory", float, "How much of its earlier score an entry keeps, 0 to 1; once: score each entry once, when it is new. "
           "[default: the policy's]", parser=number_or_once, metavar="X|once"),
    option("layer_budget", str, "How survivors are shared out over layers: uniform, or a weight for each, with commas.", parser=weights),
    option("pot_dtype", str, "Store entries in int8 or fp8. [default: in the model's own type]"),
    option("prefill", str, "bounded; whole: read all without a bound and distil once, as other methods do (for comparison)."),
    option("group", int, "Policy self_extend: how many distant entries share a position."),
    option("neighbours", int, "Policy self_extend: how many newest entries have positions of their own."),
    option("chunk_tokens", int, "Most tokens read in one forward pass. [default: 512, on a GPU 2048]"),
    option("system", str, "A system prompt; it is never distilled."),
    option("raw", bool, "Read and answer without the chat template.", "--raw"),
    option("begun", str, "Now answer_prefix.", hidden=True),
    option("persist", float, "Now score_memory.", parser=number_or_once, metavar="X|once", hidden=True),
    option("pool_kind", str, "Now pool_mode.", hidden=True),
    option("coverage", float, "Gone.", hidden=True),
)  # fmt: skip
SAMPLING = (
    option("max_tokens", int, "Most tokens of an answer."),
    option("temperature", float, "0 always takes the likeliest token."),
    option("top_k", int, "Choose among this many likeliest tokens; 0: all."),
    option(
        "top_p", float, "Choose among the likeliest tokens that have this probability together."
    ),
    option("min_p", float, "Choose among tokens at least this likely, relative to the likeliest."),
    option("seed", int, "Makes chance repeatable."),
    option(
        "stop", list[str], "A text that ends the answer; may be given several times.", env=False
    ),
)
SERVED = (
    # what is read, and how, requests say
    *(parameter for parameter in POT if parameter.name not in ("system", "raw", "prefill")),
    *(parameter for parameter in SAMPLING if parameter.name not in ("max_tokens", "stop")),
    option(
        "max_tokens", int, "Most tokens of an answer whose request names no number. [default: 1024]"
    ),
)
LOADING = (
    option("device", str, "cpu, cuda, cuda:1, mps. [default: the fastest there is]"),
    option("dtype", str, "float32, bfloat16, float16. [default: what suits the device]"),
    option("quiet", bool, "No progress, no statistics.", "--quiet"),
)
CONFIGURABLE = [parameter.name for parameter in (*POT, *SAMPLING, *LOADING)]
"""What a config file may hold, for whatever command it is: one that does not use a value ignores
it."""
COMMON = (
    *LOADING,
    option(
        "config",
        Path,
        "A YAML file with options by name, e.g. `pot_size: 1024`.",
        callback=from_config,
        is_eager=True,
    ),
    option("debug", bool, "Show where an error comes from.", "--debug", env=False),
)


@dataclasses.dataclass
class Given:
    """The values of shared options that were given, and how: "--pot-size", "INFINIPOT_POT_SIZE",
    "pot_size in the config file"."""

    values: dict[str, Any]
    origins: dict[str, str]

    def of(self, kind: type) -> dict[str, Any]:
        """Those that are fields of a dataclass."""
        names = {field.name for field in dataclasses.fields(kind)}
        return {name: value for name, value in self.values.items() if name in names}

    @property
    def pot(self) -> dict[str, Any]:
        """Those of the pot and of its policy."""
        from infinipot.config import NAMES

        return {name: value for name, value in self.values.items() if name in (*NAMES, "coverage")}

    def config(self) -> PotConfig:
        """The pot's options. Refuses what would do nothing."""
        from infinipot.config import PotConfig

        options = self.pot
        policy = policy_named(options.pop("policy", "infinipot"))
        self.check_use([policy])
        return PotConfig(**options, policy=policy)

    def check_use(self, policies: Sequence[Policy]) -> None:
        """Refuse options of which none of the policies makes any use."""
        from infinipot.config import matters
        from infinipot.policies import POLICIES

        names = " or ".join(dict.fromkeys(policy.name for policy in policies))
        for option in self.pot:
            if option != "coverage" and not any(matters(option, policy) for policy in policies):
                users = ", ".join(
                    name for name, policy in POLICIES.items() if matters(option, policy)
                )
                raise BadUse(
                    f"{self.origins[option]} does nothing with policy {names}: leave it out, or choose a policy that uses it ({users})"
                )

    def __getitem__(self, name: str) -> Any:
        return self.values.get(name)


def origin(context: typer.Context, name: str) -> str:
    source = getattr(context.get_parameter_source(name), "name", "")
    if source == "ENVIRONMENT":
        return f"INFINIPOT_{name.upper()}"
    if source == "DEFAULT_MAP":
        return f"{name} in the config file"
    return f"--{name.replace('_', '-')}"


def recipe(preset: str | None) -> dict[str, Any]:
    """The options that a preset stands for."""
    if preset is None:
        return {}
    from infinipot.checks import known
    from infinipot.config import RECIPES

    known("preset", preset, RECIPES)
    return RECIPES[preset]


def take_old_names(found: dict[str, Any], origins: dict[str, str]) -> None:
    """Give options that were given under old names the names they have now, and say so."""
    for old, new in RENAMED.items():
        if old not in found:
            continue
        if not found.get("quiet"):
            say(
                f"{origins[old]} is called {new.replace('_', '-')} now; the old name goes with the next release"
            )
        warnings.warn(f"{old} is called {new} now", DeprecationWarning, stacklevel=2)
        found.setdefault(new, found.pop(old))
        origins.setdefault(new, origins.pop(old))


def takes(
    *groups: tuple[inspect.Parameter, ...],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the options of these groups; it receives them together, as its argument
    `given`."""
    shared = [parameter for group in groups for parameter in group]

    def wrap(command: Callable[..., Any]) -> Callable[..., Any]:
        own = [
            p
            for p in inspect.signature(command, eval_str=True).parameters.values()
            if p.name != "given"
        ]

        def run(**values: Any) -> Any:
            context = values.pop("context")
            found = {p.name: values.pop(p.name) for p in shared}
            found = {name: value for name, value in found.items() if value not in (None, [], ())}
            origins = {name: origin(context, name) for name in found}
            take_old_names(found, origins)
            for name, value in recipe(found.get("preset")).items():
                if name not in found:
                    found[name], origins[name] = value, origins["preset"]
            return command(given=Given(found, origins), **values)

        context = inspect.Parameter(
            "context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context
        )
        parameters = (
            [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own] + shared + [context]
        )
        run.__name__ = command.__name__
        run.__doc__ = command.__doc__
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        return run

    return wrap
