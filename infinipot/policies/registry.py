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
from infinipot.policies.outliers import Outliers
from infinipot.policies.random import Random
from infinipot.policies.relevance import Relevance
from infinipot.policies.self_extend import SelfExtend
from infinipot.policies.sirllm import SirLLM
from infinipot.policies.sliding_window import SlidingWindow
from infinipot.policies.snapkv import SnapKV
from infinipot.policies.streaming import Streaming
from infinipot.policies.tova import Tova
from infinipot.policies.truncate import Truncate

_ALL: tuple[type[Policy], ...] = (
    InfiniPot, Outliers, Relevance, Streaming, SlidingWindow, H2O, Tova, SnapKV, SirLLM, KeyDiff,
    KVzip, Random, Truncate, Full, SelfExtend,
)  # fmt: skip
POLICIES: dict[str, type[Policy]] = {policy.name: policy for policy in _ALL}
OPTIONS = tuple(dict.fromkeys(option for policy in _ALL for option in policy.options()))
"""The options of all policies."""
OUTSIDE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*(\(.*)?", re.DOTALL)
"""`package.module:Class`, with options or without."""


def path_of(policy: type[Policy]) -> str:
    """The path of a class, as `package.module:Class`."""
    return f"{policy.__module__}:{policy.__qualname__}"


def builtin(policy: type[Policy]) -> bool:
    return POLICIES.get(policy.name) is policy


def renamed(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options under their new names. Old names warn."""
    current: dict[str, Any] = {}
    for name, value in options.items():
        new = RENAMED.get(name, name)
        if new != name:
            warnings.warn(
                f"{name} is called {new} now; the old name goes with the next release",
                DeprecationWarning,
                stacklevel=4,
            )
        if new in current or (new != name and new in options):
            raise TypeError(f"{name} and {new} are the same option: give one of them")
        current[new] = value
    return current


def with_options(policy: str | Policy, options: Mapping[str, Any]) -> Policy:
    """A policy, by name or as an object, with options replaced. None is an option's default."""
    if isinstance(policy, str):
        known("policy", policy, POLICIES)
        policy_class = POLICIES[policy]
        for name in options:
            if name not in policy_class.options() and name not in OPTIONS:
                raise UnknownOption(policy_class, name)
        return policy_class(**{name: value for name, value in options.items() if value is not None})
    if not isinstance(policy, Policy):
        hint = ""
        if isinstance(policy, type) and issubclass(policy, Policy):
            hint = f"; give {policy.__name__}(), an object"
        raise TypeError(
            f"policy={policy!r} is not allowed: it must be a name, "
            f"or an object of a subclass of Policy{hint}"
        )
    defaults = {field.name: field.default for field in dataclasses.fields(policy)}
    for name in options:
        if name not in defaults:
            raise UnknownOption(type(policy), name)
    unset = {name: defaults[name] for name, value in options.items() if value is None}
    return dataclasses.replace(policy, **{**options, **unset})


def policy_of(text: str) -> Policy:
    """A policy from its name or place, with options or without: `snapkv`, `snapkv(window=16)`,
    `package.module:Class`, `package.module:Class(alpha=0.3)`. Values are literals.

    May import a module: use it only for text from the user of this process, never for files and
    requests. Raises ValueError; UnknownOption for an option that the policy does not have.
    """
    place, bracket, arguments = text.partition("(")
    policy = class_of(place, text)
    if not bracket:
        return policy()
    if not text.endswith(")"):
        raise ValueError(
            f"policy {text!r} cannot be read: the closing parenthesis is missing, "
            f"so write {text + ')'!r}"
        )
    return policy(**literals(f"({arguments}", text))


def class_of(place: str, text: str) -> type[Policy]:
    """The class of a policy by its name, or by its place, which is imported. text: the whole text,
    for errors."""
    module, colon, name = place.partition(":")
    if not colon:
        known("policy", place, POLICIES)
        return POLICIES[place]
    if module in POLICIES:
        raise ValueError(
            f"policy {text!r} cannot be read: the options of one policy stand in parentheses, "
            f"so write '{module}({name})'"
        )
    try:
        policy = getattr(importlib.import_module(module), name)
    except (ImportError, ValueError) as problem:
        raise ValueError(f"policy {text!r}: cannot import {module} ({problem})") from problem
    except AttributeError:
        raise ValueError(f"policy {text!r}: there is no {name} in {module}") from None
    if not (isinstance(policy, type) and issubclass(policy, Policy)):
        raise ValueError(f"policy {text!r}: {place} is not a subclass of infinipot.policies.Policy")
    return policy


def literals(arguments: str, text: str, option: str = "policy") -> dict[str, Any]:
    """`(alpha=0.3, beta=(1, 2))` -> values by name. Evaluates only literals. text, option: for
    errors."""
    try:
        call = ast.parse(f"f{arguments}", mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
            raise ValueError("each option needs its name, in parentheses, as in Class(alpha=0.3)")
        return {str(keyword.arg): _literal(keyword) for keyword in call.keywords}
    except (SyntaxError, ValueError) as problem:
        raise ValueError(f"{option} {text!r} cannot be read: {problem}") from None


def _literal(keyword: ast.keyword) -> Any:
    try:
        return ast.literal_eval(keyword.value)
    except ValueError:
        raise ValueError(
            f"{ast.unparse(keyword)}: a value is a number, a quoted text, True, False, None or a tuple"
        ) from None


def documentation(policy: type[Policy]) -> dict[str, str]:
    """The docstring of each option in one line, by name. Empty without source code."""
    texts: dict[str, str] = {}
    for parent in reversed(policy.__mro__):
        if not issubclass(parent, Policy):
            continue
        try:
            (node,) = ast.parse(textwrap.dedent(inspect.getsource(parent))).body
        except (OSError, TypeError, SyntaxError):
            continue
        if isinstance(node, ast.ClassDef):
            texts |= _docstrings(node)
    return {name: texts.get(name, "") for name in policy.options()}


def _docstrings(node: ast.ClassDef) -> dict[str, str]:
    """The strings below the annotated fields of a class, by field."""
    texts = {}
    for field, text in itertools.pairwise(node.body):
        if not isinstance(field, ast.AnnAssign) or not isinstance(text, ast.Expr):
            continue
        if isinstance(text.value, ast.Constant):
            texts[ast.unparse(field.target)] = " ".join(str(text.value.value).split())
    return texts
