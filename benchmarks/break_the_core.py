"""Breaks the core in thousands of small ways, one at a time, and runs the tests that go through the
broken line: how many breakages do the tests notice?

    PYTHONPATH=. OMP_NUM_THREADS=1 nice python benchmarks/break_the_core.py -o broken.jsonl
    ... --sample 300 --seed 1          a random part
    ... --module cache/pot             files whose path contains this
    ... --resume                       only what -o does not have yet
    ... --again --seconds 40           what -o has as not noticed, with more tests

One process imports all and collects the tests. It forks a child for a first run of every test, which
notes the lines that each goes through, and then a child for every breakage. The child replaces the
code of one function and runs tests until one fails, so a breakage costs as long as its tests.

A line of the output is one breakage: its place, what became what, and the test that noticed it,
`hung`, `survived` (tests ran the line, and none failed) or `unreached` (no test runs the line, as
for what only a GPU runs). `benchmarks/harmless_breakages.txt` lists breakages that cannot change
results, with the reason; they are not counted.
"""

from __future__ import annotations

import argparse
import ast
import copy
import dataclasses
import gc
import hashlib
import json
import os
import pickle
import random
import resource
import select
import signal
import sys
import time
import traceback
import types
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "infinipot"
CORE = ("cache/*.py", "scoring/*.py", "policies/*.py", "session/*.py", "engine/*.py")
APART = {"cuda_graphs.py", "graph_chunk.py", "graph_step.py"}
"""Only a GPU runs most of these."""
TESTS = (
    *("cache", "scoring", "policies", "engine", "text", "model"),
    *("test_session.py", "test_files.py", "test_faults.py", "test_saved_state.py"),
    *("test_known_faults.py", "test_generation.py", "test_hostile_pots.py", "test_habits.py"),
)
HARMLESS = ROOT / "benchmarks" / "harmless_breakages.txt"
LONGEST_TEST_S = 20.0
"""Tests that take longer, in seconds of one core, are left out."""
FEW_CASES = 4
"""How many cases of a test function are looked at; all, if these are quick. The others run last."""
QUICK_S = 0.1
MOST_S = 10.0
"""How long the tests of one breakage may take, by the time they take on unbroken code."""
MOST_MEMORY = 12 << 30
DAY_S = 86400.0

SWAPS: dict[type[ast.AST], tuple[type[ast.AST], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div,),
    ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Mult,),
    ast.Mod: (ast.FloorDiv,),
    ast.BitOr: (ast.BitAnd,),
    ast.BitAnd: (ast.BitOr,),
    ast.And: (ast.Or,),
    ast.Or: (ast.And,),
}
NAMES = {"max": "min", "min": "max", "any": "all", "all": "any", "amax": "amin", "sorted": "list"}
UNCHANGED = {"clone", "float", "double", "copy", "contiguous", "round", "snapshot", "long", "int"}
"""Methods whose receiver can take the place of the result."""

ASIDE = {"strict", "device", "non_blocking", "pin_memory"}

Change = Callable[[ast.AST], ast.AST]


@dataclass(frozen=True)
class Breakage:
    """path: below the package. function: the outermost one, by its qualified name. way: from the
    module's syntax tree to the node, as (field, index). number: of the node's possible changes."""

    path: str
    function: str
    line: int
    lines: tuple[int, int]
    way: tuple[tuple[str, int | None], ...]
    number: int
    kind: str
    before: str
    after: str
    nth: int = 0

    @property
    def key(self) -> str:
        """The same when other lines change."""
        return f"{self.path} {self.function}: {self.before} -> {self.after} [{self.nth}]"


def changed(node: ast.AST, **fields: Any) -> ast.AST:
    """A copy of a node with other fields."""
    twin = copy.copy(node)
    for name, value in fields.items():
        setattr(twin, name, value)
    return twin


def changes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """All small changes of a node itself, each with its kind."""
    for types_of_nodes, change in CHANGES:
        if isinstance(node, types_of_nodes):
            yield from change(node)
    if is_deed(node):
        never = ast.parse("__name__ == ''", mode="eval").body
        yield "statement", ast.If(never, [node], [])
    if isinstance(node, (ast.Break, ast.Continue)):
        yield "statement", ast.Pass()


def changed_comparisons(node: ast.Compare) -> Iterator[tuple[str, ast.AST]]:
    for place, operator in enumerate(node.ops):
        for other in SWAPS[type(operator)]:
            ops = [*node.ops[:place], other(), *node.ops[place + 1 :]]
            yield "comparison", changed(node, ops=ops)


def changed_operators(node: Any) -> Iterator[tuple[str, ast.AST]]:
    for other in SWAPS.get(type(node.op), ()):
        yield "operator", changed(node, op=other())


def changed_signs(node: ast.UnaryOp) -> Iterator[tuple[str, ast.AST]]:
    yield "operator", node.operand


def changed_conditions(node: Any) -> Iterator[tuple[str, ast.AST]]:
    yield "condition", changed(node, test=ast.UnaryOp(ast.Not(), node.test))


def changed_slices(node: ast.Slice) -> Iterator[tuple[str, ast.AST]]:
    for name in ("lower", "upper", "step"):
        if getattr(node, name) is not None:
            yield "slice", changed(node, **{name: None})


def changed_returns(node: ast.Return) -> Iterator[tuple[str, ast.AST]]:
    nothing = isinstance(node.value, ast.Constant) and node.value.value is None
    if node.value is not None and not nothing:
        yield "return", changed(node, value=ast.Constant(None))


def is_deed(node: ast.AST) -> bool:
    """Whether a statement can be left out: a call, or a change of an attribute, an element or a
    number."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call)
    if isinstance(node, ast.AugAssign):
        return True
    if isinstance(node, ast.Assign):
        targets = [
            one
            for target in node.targets
            for one in (target.elts if isinstance(target, ast.Tuple) else [target])
        ]
        return any(isinstance(target, (ast.Attribute, ast.Subscript)) for target in targets)
    return False


def changed_constants(node: ast.Constant) -> Iterator[tuple[str, ast.AST]]:
    value = node.value
    if isinstance(value, bool):
        yield "constant", changed(node, value=not value)
    elif isinstance(value, int):
        yield "constant", changed(node, value=value + 1)
        yield "constant", changed(node, value=value - 1)
    elif isinstance(value, float):
        yield "constant", changed(node, value=2 * value + 1)
    elif isinstance(value, str) and value:
        yield "text", changed(node, value=value + "_")


def changed_calls(node: ast.Call) -> Iterator[tuple[str, ast.AST]]:
    function = node.func
    name = getattr(function, "id", getattr(function, "attr", ""))
    if name in NAMES:
        field = "id" if isinstance(function, ast.Name) else "attr"
        yield "name", changed(node, func=changed(function, **{field: NAMES[name]}))
    if isinstance(function, ast.Attribute) and name in UNCHANGED and not node.args:
        yield "call", function.value
    for place, keyword in enumerate(node.keywords):
        if keyword.arg is not None and keyword.arg not in ASIDE:
            keywords = node.keywords[:place] + node.keywords[place + 1 :]
            yield "argument", changed(node, keywords=keywords)


CHANGES: tuple[tuple[Any, Callable[[Any], Iterator[tuple[str, ast.AST]]]], ...] = (
    (ast.Compare, changed_comparisons),
    ((ast.BinOp, ast.BoolOp, ast.AugAssign), changed_operators),
    (ast.UnaryOp, changed_signs),
    (ast.Constant, changed_constants),
    ((ast.If, ast.IfExp), changed_conditions),
    (ast.Slice, changed_slices),
    (ast.Call, changed_calls),
    (ast.Return, changed_returns),
)


def children(node: ast.AST) -> Iterator[tuple[str, int | None, ast.AST]]:
    """Children that decide what happens: no annotations, decorators, docstrings, messages of
    errors."""
    for field, value in ast.iter_fields(node):
        if field == "args" and isinstance(value, ast.arguments):
            continue  # defaults of parameters are part of no code
        if field in ("annotation", "returns", "decorator_list", "exc", "cause", "msg", "ctx"):
            continue
        if isinstance(value, list):
            for index, child in enumerate(value):
                if isinstance(child, ast.AST) and not is_beside(child):
                    yield field, index, child
        elif isinstance(value, ast.AST) and not is_beside(value):
            yield field, None, value


def is_beside(node: ast.AST) -> bool:
    """Docstrings, messages, and arguments that only check, or only make a GPU faster."""
    if isinstance(node, ast.keyword):
        return node.arg in ASIDE
    if isinstance(node, ast.Call):
        return ast.unparse(node.func) == "warnings.warn"
    docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return docstring or isinstance(node, ast.JoinedStr)


def lines_of(node: ast.AST) -> tuple[int, int]:
    """First and last line of a statement, or of the head of one that holds others."""
    first = node.lineno  # type: ignore[attr-defined]
    last = node.end_lineno  # type: ignore[attr-defined]
    for _, _, child in children(node):
        if isinstance(child, ast.stmt):
            last = min(last, max(first, child.lineno - 1))
    return first, last


def breakages(path: Path) -> list[Breakage]:
    """All breakages inside the functions of a file."""
    found: list[Breakage] = []
    seen: Counter[str] = Counter()
    name = path.relative_to(PACKAGE).as_posix()

    def walk(node: ast.AST, way: tuple, function: str, owner: str, lines: tuple[int, int]) -> None:
        if isinstance(node, ast.stmt):
            lines = lines_of(node)
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            inner = f"{owner}.{node.name}".lstrip(".")
            if isinstance(node, ast.FunctionDef) and not function:
                function = inner
            owner = inner
        elif function:
            for number, (kind, after) in enumerate(changes(node)):
                before = text_of(node)
                left = f"{name} {function}: {before} -> {text_of(after)}"
                place = (node, after) and getattr(node, "lineno", lines[0])
                found.append(
                    Breakage(
                        name,
                        function,
                        place,
                        lines,
                        way,
                        number,
                        kind,
                        before,
                        text_of(after),
                        seen[left],
                    )
                )
                seen[left] += 1
        for field, index, child in children(node):
            walk(child, (*way, (field, index)), function, owner, lines)

    walk(ast.parse(path.read_text()), (), "", "", (1, 1))
    return found


def text_of(node: ast.AST) -> str:
    """The code of a node in one line, shortened."""
    text = " ".join(ast.unparse(ast.fix_missing_locations(copy.deepcopy(node))).split())
    return text if len(text) <= 90 else text[:87] + "..."


def broken_code(breakage: Breakage) -> types.CodeType:
    """The code of the outermost function with the breakage in it."""
    path = PACKAGE / breakage.path
    tree = ast.parse(path.read_text())
    *before, (field, index) = breakage.way
    parent: Any = tree
    for name, place in before:
        parent = getattr(parent, name)
        if place is not None:
            parent = parent[place]
    node = getattr(parent, field) if index is None else getattr(parent, field)[index]
    _, after = list(changes(node))[breakage.number]
    ast.copy_location(after, node)
    if index is None:
        setattr(parent, field, after)
    else:
        getattr(parent, field)[index] = after
    code = compile(ast.fix_missing_locations(tree), str(path), "exec", dont_inherit=True)
    same = [c for c in codes(code) if c.co_qualname == breakage.function]
    return [c for c in same if c.co_firstlineno <= breakage.line][-1]


def codes(code: types.CodeType) -> Iterator[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from codes(constant)


def place_of(code: types.CodeType) -> tuple[str, str, int]:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def functions() -> dict[tuple[str, str, int], list[types.FunctionType]]:
    """All functions of the package in memory, by file, qualified name and first line."""
    found: dict[tuple[str, str, int], list[types.FunctionType]] = defaultdict(list)
    for thing in gc.get_objects():
        if type(thing) is types.FunctionType and thing.__code__.co_filename.startswith(
            str(PACKAGE)
        ):
            found[place_of(thing.__code__)].append(thing)
    return found


@dataclass
class Child:
    """A process that was forked, and sends bytes."""

    pid: int
    pipe: int

    @classmethod
    def start(cls, work: Callable[[Callable[[bytes], Any]], None]) -> Child:
        """Run `work` in a child. It gets a function that sends bytes."""
        receive, send = os.pipe()
        pid = os.fork()
        if pid:
            os.close(send)
            return cls(pid, receive)
        os.setsid()
        os.close(receive)
        try:
            work(lambda data: os.write(send, data))
        except BaseException:
            traceback.print_exc(file=sys.__stderr__)
        finally:
            os._exit(0)

    def end(self, limit_s: float) -> tuple[bytes, bool]:
        """What it has sent, and whether it took too long: over its limit, or its own of CPU time."""
        data = b""
        last = time.monotonic() + limit_s
        done = False
        while not done and (left := last - time.monotonic()) > 0:
            if select.select([self.pipe], [], [], left)[0]:
                part = os.read(self.pipe, 1 << 20)
                data += part
                done = not part
        os.close(self.pipe)
        if not done:
            os.killpg(self.pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        spent = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU
        return data, spent or not done


def failure(item: pytest.Item) -> str:
    """Run a test. Returns the last line about its failure; empty for none."""
    from _pytest.runner import runtestprotocol

    reports = runtestprotocol(item, nextitem=None, log=False)
    texts = [report.longreprtext or "failed" for report in reports if report.failed]
    return "".join(text.splitlines()[-1] for text in texts[:1])


class TooLong(BaseException):
    """A test that is left out. No test catches it."""


def give_up(*_: Any) -> None:
    raise TooLong


class Marker(ast.NodeTransformer):
    """Puts a note of its line before every statement of functions."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.inside = False

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        before = self.inside
        self.inside = True
        self.generic_visit(node)
        self.inside = before
        return node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for field in ("body", "orelse", "finalbody"):
            statements = getattr(node, field, None)
            if self.inside and isinstance(statements, list):
                marked = [x for old in statements for x in (self.mark(old), old)]
                setattr(node, field, marked)
        return node

    def mark(self, statement: ast.stmt) -> ast.stmt:
        note = ast.parse(f"note_line(({self.name!r}, {statement.lineno}))").body[0]
        for node in ast.walk(note):
            ast.copy_location(node, statement)
        return note


def note_lines(paths: list[Path]) -> set[tuple[str, int]]:
    """Make the core note the lines that run. Returns the set, which grows from now on."""
    seen: set[tuple[str, int]] = set()
    table = functions()
    for path in paths:
        tree = Marker(path.relative_to(PACKAGE).as_posix()).visit(ast.parse(path.read_text()))
        code = compile(ast.fix_missing_locations(tree), str(path), "exec", dont_inherit=True)
        for inner in codes(code):
            for owner in table.get(place_of(inner), []):
                owner.__globals__["note_line"] = seen.add
                owner.__code__ = inner
    return seen


@dataclass
class Known:
    """What the tests do on unbroken code. version: of the code. seconds: by test; of those that are
    left out infinite. lines: (file, line) -> tests. files: the versions of the tests' files. sizes:
    how many lines a test goes through."""

    version: str
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    lines: dict[tuple[str, int], list[str]] = dataclasses.field(default_factory=dict)
    files: dict[str, str] = dataclasses.field(default_factory=dict)
    sizes: Counter[str] = dataclasses.field(default_factory=Counter)

    def add(self, other: Known) -> None:
        self.seconds |= other.seconds
        for place, tests in other.lines.items():
            self.lines.setdefault(place, []).extend(tests)

    def tests(self, breakage: Breakage, most_s: float, every: Iterable[str]) -> list[str]:
        """The tests that go through the lines: quick ones that go through few others first, then
        all other cases of the same test functions. every: the tests that can run."""
        first, last = breakage.lines
        names = {
            test
            for line in range(first, last + 1)
            for test in self.lines.get((breakage.path, line), ())
        }
        if not self.sizes:
            self.sizes = Counter(test for tests in self.lines.values() for test in tests)
        dearest: dict[str, float] = defaultdict(float)
        for name in names:
            function = name.split("[")[0]
            dearest[function] = max(dearest[function], self.seconds[name])
        unseen = [x for x in every if x not in self.seconds and x.split("[")[0] in dearest]
        chosen: list[str] = []
        total = 0.0
        for name in (
            *sorted(names, key=lambda name: self.seconds[name] * self.sizes[name]),
            *sorted(unseen, key=lambda name: dearest[name.split("[")[0]]),
        ):
            seconds = self.seconds.get(name, dearest[name.split("[")[0]])
            if total + seconds <= most_s:
                chosen.append(name)
                total += seconds
        return chosen

    def forget(self, changed: set[str]) -> None:
        """Forget the tests of these files."""
        gone = {name for name in self.seconds if name.split("::")[0] in changed}
        self.seconds = {name: x for name, x in self.seconds.items() if name not in gone}
        self.lines = {
            place: [x for x in tests if x not in gone] for place, tests in self.lines.items()
        }


def observe(items: dict[str, pytest.Item], paths: list[Path], send: Callable[[bytes], Any]) -> None:
    """Run all tests, and send a pickled `Known`."""
    signal.signal(signal.SIGPROF, give_up)
    seen = note_lines(paths)
    seconds: dict[str, float] = {}
    lines: dict[tuple[str, int], list[str]] = defaultdict(list)
    for number, (name, item) in enumerate(items.items()):
        seen.clear()
        signal.setitimer(signal.ITIMER_PROF, LONGEST_TEST_S)
        started = time.process_time()
        wrong = failure(item)
        took = time.process_time() - started
        signal.setitimer(signal.ITIMER_PROF, 0)
        if number % 100 == 0:
            print(f"{number} of {len(items)} tests observed", file=sys.__stderr__, flush=True)
        if wrong:
            print(f"left out: {name}: {wrong}", file=sys.__stderr__, flush=True)
            seconds[name] = float("inf")
            continue
        seconds[name] = took
        for place in seen:
            lines[place].append(name)
    data = pickle.dumps(Known("", seconds, dict(lines)))
    for start in range(0, len(data), 1 << 16):
        send(data[start : start + (1 << 16)])


class Plugin:
    """Runs breakages in place of the tests that pytest has collected."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {
            item.nodeid: item
            for item in session.items
            if not {"slow", "gpu"} & set(item.keywords)
            and not any(
                name.startswith(("smollm2", "qwen")) for name in getattr(item, "fixturenames", ())
            )
        }
        capture = session.config.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled():
            self.run(items)
        return True

    def run(self, items: dict[str, pytest.Item]) -> None:
        paths = [path for path in core() if self.options.module in path.as_posix()]
        known = self.known(items)
        table = functions()
        gc.collect()
        gc.freeze()
        wanted = chosen(paths, self.options)
        jobs = self.options.jobs

        def work(part: list[Breakage]) -> None:
            for number, breakage in enumerate(part):
                noticed, seconds = result_of(breakage, table, items, known, self.options.seconds)
                write(self.options.output, breakage, noticed, seconds)
                if number % 50 == 49:
                    print(f"{number + 1} of {len(part)} breakages", file=sys.stderr, flush=True)

        children = [Child.start(lambda _, k=k: work(wanted[k::jobs])) for k in range(jobs)]
        for child in children:
            child.end(DAY_S)

    def known(self, items: dict[str, pytest.Item]) -> Known:
        """What is stored beside the output of the core as it is now, with tests that are new."""
        stored = self.options.output.with_suffix(".lines")
        known = Known(version(core()))
        if stored.exists():
            before: Known = pickle.loads(stored.read_bytes())
            known = before if before.version == known.version else known
        files = {name.split("::")[0] for name in items}
        files_now = {name: version([ROOT / name]) for name in files}
        known.forget({name for name in files if known.files.get(name) != files_now[name]})
        known.files = files_now
        known.sizes = Counter()
        groups: dict[str, list[str]] = defaultdict(list)
        for name in items:
            groups[name.split("[")[0]].append(name)
        for names in groups.values():
            step = -(-len(names) // FEW_CASES)  # the first few are evenly spread
            names[:] = [name for place in range(step) for name in names[place::step]]
        self.add(known, [name for names in groups.values() for name in names[:FEW_CASES]], items)
        quick = [
            name
            for names in groups.values()
            if max(known.seconds[name] for name in names[:FEW_CASES]) <= QUICK_S
            for name in names
        ]
        self.add(known, quick, items)
        stored.write_bytes(pickle.dumps(known))
        return known

    def add(self, known: Known, names: list[str], items: dict[str, pytest.Item]) -> None:
        """Observe those of these tests that are not known."""
        new = [name for name in names if name not in known.seconds]
        jobs = min(self.options.jobs, len(new))
        children = []
        for k in range(jobs):
            part = {name: items[name] for name in new[k::jobs]}
            children.append(Child.start(lambda send, part=part: observe(part, core(), send)))
        for child in children:
            known.add(pickle.loads(child.end(DAY_S)[0]))


def version(paths: list[Path]) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()


def write(output: Path, breakage: Breakage, noticed: str, seconds: float) -> None:
    result = {"key": breakage.key, "line": breakage.line, "kind": breakage.kind}
    result |= {"noticed": noticed, "seconds": round(seconds, 2)}
    with output.open("a") as file:
        print(json.dumps(result, ensure_ascii=False), file=file)


def result_of(
    breakage: Breakage,
    table: dict[tuple[str, str, int], list[types.FunctionType]],
    items: dict[str, pytest.Item],
    known: Known,
    most_s: float,
) -> tuple[str, float]:
    """Which test notices a breakage, and after how many seconds."""
    started = time.perf_counter()
    code = broken_code(breakage)
    owners = table.get(place_of(code), [])
    names = [name for name in known.tests(breakage, most_s, items) if name in items]
    if not owners or not names:
        return "unreached", 0.0
    allowed_s = int(20 + 2 * most_s)

    def work(send: Callable[[bytes], Any]) -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (allowed_s, allowed_s + 5))
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        for owner in owners:
            owner.__code__ = code
        for name in names:
            if failure(items[name]):
                send(name.encode())
                return
        send(b"survived")

    data, late = Child.start(work).end(20 * allowed_s)
    noticed = "hung" if late else data.decode() or "crashed"
    return noticed, time.perf_counter() - started


def core() -> list[Path]:
    paths = [path for pattern in CORE for path in sorted(PACKAGE.glob(pattern))]
    return [path for path in paths if path.name not in APART] + [PACKAGE / "text" / "tokens.py"]


def harmless() -> dict[str, str]:
    """Breakages that cannot change results, and why. A line is `key # reason`."""
    lines = HARMLESS.read_text().splitlines() if HARMLESS.exists() else []
    return dict(line.rsplit(" # ", 1) for line in lines if " # " in line)  # type: ignore[misc]


def results(output: Path) -> dict[str, dict[str, Any]]:
    """The last result of each breakage."""
    if not output.exists():
        return {}
    return {line["key"]: line for line in map(json.loads, output.read_text().splitlines())}


def chosen(paths: list[Path], options: argparse.Namespace) -> list[Breakage]:
    every = [breakage for path in paths for breakage in breakages(path)]
    left_out = harmless()
    every = [breakage for breakage in every if breakage.key not in left_out]
    before = results(options.output)
    if options.again:
        return [
            one
            for one in every
            if before.get(one.key, {}).get("noticed") in ("survived", "unreached")
        ]
    if options.sample:
        every = random.Random(options.seed).sample(every, min(options.sample, len(every)))
    if options.resume:
        every = [one for one in every if one.key not in before]
    return every


def summary(output: Path) -> str:
    """Counts by file, and the rate."""
    left_out = harmless()
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for key, line in results(output).items():
        if key not in left_out:
            noticed = line["noticed"]
            kind = noticed if noticed in ("survived", "unreached", "hung") else "noticed"
            for name in (key.split()[0], "all"):
                counts[name][kind] += 1
    rows = []
    for name, count in sorted(counts.items(), key=lambda pair: (pair[0] == "all", pair[0])):
        seen = count["noticed"] + count["hung"]
        reached = seen + count["survived"]
        rows.append(
            f"{name:32} {seen:5} of {reached:5} noticed ({100 * seen / max(1, reached):5.1f} %), "
            f"{count['hung']} of them by hanging; {count['unreached']} never run"
        )
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=Path("broken.jsonl"))
    parser.add_argument("--sample", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=MOST_S, help="most time for a breakage")
    parser.add_argument("--module", default="")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--jobs", type=int, default=1, help="children at a time")
    parser.add_argument("--summary", action="store_true", help="only print the summary of -o")
    parser.add_argument("--list", action="store_true", help="only print the breakages")
    options = parser.parse_args()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if options.list:
        print(*(one.key for one in chosen(core(), options)), sep="\n")
    elif not options.summary:
        arguments = [str(ROOT / "tests" / name) for name in TESTS]
        quiet = ["-q", "-p", "no:cacheprovider", "--no-header", "--no-summary"]
        pytest.main([*arguments, *quiet, f"--rootdir={ROOT}"], plugins=[Plugin(options)])
    if not options.list:
        print(summary(options.output))


if __name__ == "__main__":
    main()
