"""The shared options that a command receives: their values, and where each comes from."""

from __future__ import annotations

import dataclasses
import inspect
import os
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import typer
from typer.models import ArgumentInfo

from infinipot.checks import EMBEDDED, RENAMED, check_model_name
from infinipot.cli.console import BadUse, check_utf8, say
from infinipot.cli.policy_names import parse_policy

if TYPE_CHECKING:
    from infinipot.config import PotConfig
    from infinipot.policies import Policy


@dataclasses.dataclass
class CommandOptions:
    """The options that the user set. origins: where each comes from, "--pot-size",
    "INFINIPOT_POT_SIZE", "pot_size in the config file"."""

    values: dict[str, Any]
    origins: dict[str, str]

    def __getitem__(self, name: str) -> Any:
        return self.values.get(name)

    @property
    def quiet(self) -> bool:
        return bool(self["quiet"])

    @property
    def loading(self) -> dict[str, Any]:
        """Arguments of `load` that are set."""
        names = ("device", "dtype", "weights", "tensor_parallel", "spread")
        return {name: self[name] for name in names if self[name] is not None}

    def fields_of(self, kind: type) -> dict[str, Any]:
        """The options that are fields of a dataclass."""
        names = {field.name for field in dataclasses.fields(kind)}
        return {name: value for name, value in self.values.items() if name in names}

    @property
    def pot(self) -> dict[str, Any]:
        """The options of the pot and of its policy."""
        from infinipot.config import NAMES

        return {name: value for name, value in self.values.items() if name in (*NAMES, "coverage")}

    def config(self) -> PotConfig:
        """The pot's options. Refuses options without effect."""
        from infinipot.config import PotConfig

        options = self.pot
        policy = parse_policy(options.pop("policy", "infinipot"))
        self.check_use([policy])
        return PotConfig(**options, policy=policy)

    def check_use(self, policies: Sequence[Policy]) -> None:
        """Refuse options that none of the policies uses."""
        from infinipot.config import matters
        from infinipot.policies import POLICIES

        names = " or ".join(dict.fromkeys(policy.name for policy in policies))
        for option in self.pot:
            if option == "coverage" or any(matters(option, policy) for policy in policies):
                continue
            users = ", ".join(name for name, policy in POLICIES.items() if matters(option, policy))
            raise BadUse(
                f"{self.origins[option]} does nothing with policy {names}: "
                f"leave it out, or choose a policy that uses it ({users})"
            )


def origin(context: typer.Context, name: str) -> str:
    """Where an option's value comes from, as an error names it."""
    source = getattr(context.get_parameter_source(name), "name", "")
    if source == "ENVIRONMENT":
        return f"INFINIPOT_{name.upper()}"
    if source == "DEFAULT_MAP":
        return f"{name} in the config file"
    return f"--{name.replace('_', '-')}"


def collect(context: typer.Context, values: dict[str, Any]) -> CommandOptions:
    """The options that are set, under their present names, with those of the preset."""
    options = CommandOptions({}, {})
    for name, value in values.items():
        if value not in (None, [], ()):
            options.values[name] = value
            options.origins[name] = origin(context, name)
            for text in value if isinstance(value, list) else [value]:
                if isinstance(text, str):
                    check_utf8(options.origins[name], text)
    rename(options)
    for name, value in preset_values(options).items():
        if name not in options.values:
            options.values[name] = value
            options.origins[name] = options.origins["preset"]
    return options


def rename(options: CommandOptions) -> None:
    """Move values of old option names to the new names, and tell the user."""
    for old, new in RENAMED.items():
        if old not in options.values:
            continue
        if not options.quiet:
            say(
                f"{options.origins[old]} is called {new.replace('_', '-')} now; "
                "the old name goes with the next release"
            )
        warnings.warn(f"{old} is called {new} now", DeprecationWarning, stacklevel=2)
        options.values.setdefault(new, options.values.pop(old))
        options.origins.setdefault(new, options.origins.pop(old))


def preset_values(options: CommandOptions) -> dict[str, Any]:
    """The options that the preset stands for, if there is one."""
    if options["preset"] is None:
        return {}
    from infinipot.config import PotConfig, preset_options

    return preset_options(options["preset"], options["pot_size"] or PotConfig.pot_size)


def optional_model(parameter: inspect.Parameter) -> inspect.Parameter:
    """The argument MODEL may be left out; then it is empty. Others stay as they are."""
    notes = getattr(parameter.annotation, "__metadata__", ())
    if parameter.name == "model" and any(isinstance(one, ArgumentInfo) for one in notes):
        return parameter.replace(default="")
    return parameter


def is_prose(text: str) -> bool:
    """Whether the first argument is a question, not a model: only a file's name may hold spaces."""
    return any(letter.isspace() for letter in text.strip()) and not os.path.exists(text)


def settle_model(values: dict[str, Any], context: typer.Context, options: CommandOptions) -> None:
    """Fill in a MODEL that was left out. A question in its place moves to where it belongs."""
    if "words" in values and values["words"] is None and is_prose(values["model"]):
        values["words"] = values["model"]
        values["model"] = ""
    given = getattr(context.get_parameter_source("model"), "name", "") == "COMMANDLINE"
    if values.get("resume") and not given:
        values["model"] = ""  # the conversation that goes on names its model
        return
    if values["model"] == "":
        values["model"] = default_model(context, options)
    check_model_name(values["model"])


def default_model(context: typer.Context, options: CommandOptions) -> str:
    """The model of a command line that names none: of the environment, of the config file, or the
    embedded one."""
    model = os.environ.get("INFINIPOT_MODEL") or context.lookup_default("model")
    if model:
        return str(model)
    if not options.quiet:
        say(f"no MODEL is given: taking {EMBEDDED}, the embedded one")
    return EMBEDDED


def takes(
    *groups: tuple[inspect.Parameter, ...],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the options of these groups to a command. It receives them as its argument `options`."""
    shared = [parameter for group in groups for parameter in group]
    context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)

    def wrap(command: Callable[..., Any]) -> Callable[..., Any]:
        own = [
            optional_model(parameter).replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for name, parameter in inspect.signature(command, eval_str=True).parameters.items()
            if name != "options"
        ]

        names_model = any(parameter.default == "" for parameter in own)

        def run(**values: Any) -> Any:
            context = values.pop("context")
            common = {parameter.name: values.pop(parameter.name) for parameter in shared}
            options = collect(context, common)
            if names_model:
                settle_model(values, context, options)
            return command(options=options, **values)

        parameters = [*own, *shared, context]
        run.__name__ = command.__name__
        run.__doc__ = command.__doc__
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return wrap
