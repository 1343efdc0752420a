"""Policies by name, and those of other packages by `package.module:Class(option=value)`."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import itertools
import re
import textwrap
import warnings
from collections.abc import Mapping
from typing import Any

from infinipot.checks import RENAMED, known
from infinipot.policies.base import Policy, UnknownOption
from infinipot.policies.full import Full
from infinipot.policies.h2o import H2O
from infinipot.policies.infinipot import InfiniPot
from infinipot.policies.keydiff import KeyDiff
from infinipot.policies.kvzip import KVzip
from infinipot.policies.random import Random
from infinipot.policies.self_extend import SelfExtend
from infinipot.policies.sirllm import SirLLM
from infinipot.policies.sliding_window import SlidingWindow
from infinipot.policies.snapkv import SnapKV
from infinipot.policies.streaming import Streaming
from infinipot.policies.tova import Tova
from infinipot.policies.truncate import Truncate

_ALL: tuple[type[Policy], ...] = (
    InfiniPot, Streaming, SlidingWindow, H2O, Tova, SnapKV, SirLLM, KeyDiff, KVzip, Random, Truncate, Full, SelfExtend,
)  # fmt: skip
POLICIES: dict[str, type[Policy]] = {policy.name: policy for policy in _ALL}
OPTIONS = tuple(dict.fromkeys(option for policy in _ALL for option in policy.options()))
"""The options of all policies."""
OUTSIDE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*(\(.*\))?", re.DOTALL)
"""`package.module:Class`, with options or without."""


def path_of(policy: type[Policy]) -> str:
    """Where a class stands, as `package.module:Class`."""
    return f"{policy.__module__}:{policy.__qualname__}"


def builtin(policy: type[Policy]) -> bool:
    return POLICIES.get(policy.name) is policy


def renamed(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options under the names they have now; old ones warn."""
    found: dict[str, Any] = {}
    for name, value in options.items():
        new = RENAMED.get(name, name)
        if new != name:
            warnings.warn(
                f"{name} is called {new} now; the old name goes with the next release",
                DeprecationWarning,
                stacklevel=4,
            )
        if new in found or (new != name and new in options):
            raise TypeError(f"{name} and {new} are the same option: give one of them")
        found[new] = value
    return found


def with_options(policy: str | Policy, options: Mapping[str, Any]) -> Policy:
    """A policy, by name or as it is, with some options changed; None is an option's default."""
    if isinstance(policy, str):
        known("policy", policy, POLICIES)
        policy_class = POLICIES[policy]
        for name in options:
            if name not in policy_class.options() and name not in OPTIONS:
                raise UnknownOption(policy_class, name)
        return policy_class(**{name: value for name, value in options.items() if value is not None})
    if not isinstance(policy, Policy):
        if isinstance(policy, type) and issubclass(policy, Policy):
            hint = f"; give {policy.__name__}(), an object"
        else:
            hint = ""
        raise TypeError(
            f"policy={policy!r} is not allowed: it must be a name, or an object of a subclass of Policy{hint}"
        )
    defaults = {field.name: field.default for field in dataclasses.fields(policy)}
    for name in options:
        if name not in defaults:
            raise UnknownOption(type(policy), name)
    return dataclasses.replace(
        policy,
        **{name: defaults[name] if value is None else value for name, value in options.items()},
    )


def policy_of(text: str) -> Policy:
    """A policy as the command line names it: its name, or `package.module:Class` or
    `package.module:Class(alpha=0.3)`.

    The module is imported, so this is for what the user of this process says, never for files and
    requests. Values are literals.
    """
    if text in POLICIES or not OUTSIDE.fullmatch(text):
        return with_options(text, {})
    place, _, arguments = text.partition("(")
    module, _, name = place.partition(":")
    try:
        policy = getattr(importlib.import_module(module), name)
    except ImportError as problem:
        raise ValueError(f"policy {text!r}: cannot import {module} ({problem})") from problem
    except AttributeError:
        raise ValueError(f"policy {text!r}: there is no {name} in {module}") from None
    if not (isinstance(policy, type) and issubclass(policy, Policy)):
        raise ValueError(f"policy {text!r}: {place} is not a subclass of infinipot.policies.Policy")
    made: Policy = policy(**literals(f"({arguments}" if arguments else "()", text))
    return made


def literals(arguments: str, text: str) -> dict[str, Any]:
    """`(alpha=0.3, beta=(1, 2))` -> values by name. Nothing is evaluated but literals."""
    try:
        call = ast.parse(f"f{arguments}", mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
            raise ValueError("options stand in parentheses, as in Class(alpha=0.3)")
        return {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    except (SyntaxError, ValueError) as problem:
        raise ValueError(f"policy {text!r} cannot be read: {problem}") from None


def documentation(policy: type[Policy]) -> dict[str, str]:
    """What stands below each option in the source, in one line, by name. Empty where there is no
    source."""
    found: dict[str, str] = {}
    for parent in reversed(policy.__mro__):
        if not issubclass(parent, Policy):
            continue
        try:
            (node,) = ast.parse(textwrap.dedent(inspect.getsource(parent))).body
        except (OSError, TypeError, SyntaxError):
            continue
        if isinstance(node, ast.ClassDef):
            lines = node.body
        else:
            lines = []
        for field, text in itertools.pairwise(lines):
            fits = (
                isinstance(field, ast.AnnAssign)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
            )
            if fits:
                found[ast.unparse(field.target)] = " ".join(str(text.value.value).split())  # type: ignore[attr-defined]
    return {name: found.get(name, "") for name in policy.options()}
