"""Pot files that somebody has changed, the same for the same seed, and what must become of each."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from families import FAMILIES
from mutations import places
from safetensors.torch import load, save
from tiny import make_tiny, make_tokenizer

from infinipot import PotConfig, PotFileError, Session, pot_file
from infinipot.cli.info import rows
from infinipot.model.runner import ModelRunner

TEXT = "The keeper hid the letter. " * 8
SIZES: dict[str, Any] = {"pot_size": 96, "distill_to": 40, "chunk_tokens": 24}
KINDS: dict[str, tuple[str, dict[str, Any], int]] = {
    "plain question": ("llama", {}, 200),
    "not distilled": ("llama", {}, 30),
    "int8": ("llama", {"pot_dtype": "int8"}, 200),
    "fp8": ("llama", {"pot_dtype": "fp8"}, 150),
    "growing positions": ("llama", {"context_reset": False}, 150),
    "newest catalyst": ("llama", {"catalyst": "plain"}, 150),
    "contrast": ("llama", {"contrast": "unrelated", "catalyst": "one two"}, 150),
    "memory": ("llama", {"score_memory": 0.5}, 150),
    "once": ("llama", {"score_memory": "once", "catalyst": "one two"}, 150),
    "layers": ("llama", {"layer_budget": (2.0, 1.0)}, 150),
    "whole": ("llama", {"prefill": "whole"}, 150),
    "streaming": ("llama", {"policy": "streaming"}, 150),
    "h2o": ("llama", {"policy": "h2o"}, 150),
    "snapkv": ("llama", {"policy": "snapkv", "window": 8}, 150),
    "kvzip": ("llama", {"policy": "kvzip", "catalyst": "one two"}, 150),
    "truncate": ("llama", {"policy": "truncate"}, 200),
    "full": ("llama", {"policy": "full"}, 60),
    "self_extend": ("llama", {"policy": "self_extend", "group": 2, "neighbours": 16}, 60),
    "sliding": ("Gemma-2", {}, 150),
    "recurrent": ("LFM2", {}, 150),
    "both": ("Falcon-H1", {}, 150),
}
"""By name: the model, options of the pot, characters read."""
NUMBERS: list[Any] = [
    0,
    -1,
    1,
    2,
    3,
    41,
    97,
    2**31,
    2**31 - 1,
    2**53,
    2**63,
    2**70,
    10**400,
    -(2**63),
    1.5,
    1e308,
    1e-320,
]
VALUES: list[Any] = [
    None, True, False, "", "x", "question", "../../etc", "\x00\x1b[2J", "os:system", "json:JSONDecoder", "💥" * 9, [], {}, [[]], [None],
    {"a": 1}, [0] * 300, "x" * 5000, [1, "a"], {"policy": "h2o"}, "infinipot", "full", "truncate", "whole", "int8",
]  # fmt: skip
RAW = [
    "NaN",
    "Infinity",
    "1e999",
    "-Infinity",
    "[" * 5000,
    '{"a":' * 3000,
    '"\\ud800"',
    "9" * 5000,
    "",
    '"\\u0000"',
    "[1,2",
    "1 1",
]
"""JSON values, and what is none."""
MARK = "-mark-"


@dataclasses.dataclass(frozen=True)
class Sample:
    """A good file, and the model that wrote it."""

    kind: str
    runner: ModelRunner
    tokenizer: Any
    tensors: dict[str, torch.Tensor]
    header: dict[str, Any]
    origin: pot_file.Origin


def sample_files(folder: Path, kinds: list[str]) -> list[Sample]:
    """A good file of each kind."""
    tokenizer = make_tokenizer()
    runners: dict[str, ModelRunner] = {}
    found = []
    for kind in kinds:
        name, options, length = KINDS[kind]
        if name not in runners:
            model = make_tiny("llama") if name == "llama" else FAMILIES[name].build()
            runners[name] = ModelRunner(model)
        config = PotConfig(**{**SIZES, **options})
        system = "Be brief." if length == 200 else None
        session = Session(runners[name], tokenizer, config, system=system)
        session.append(TEXT[:length], question="Who?")
        path = folder / f"{kind}.pot"
        session.save(path)
        header = pot_file.describe(path)
        origin = pot_file.origin(runners[name].model, tokenizer)
        tensors = dict(sorted(load(path.read_bytes()).items()))  # else in any order
        found.append(Sample(kind, runners[name], tokenizer, tensors, header, origin))
    return found


# ---------------------------------------------------------------- changes


def packed(
    tensors: dict[str, torch.Tensor], header: dict[str, Any], chance: random.Random
) -> bytes:
    """A file, mostly with the right hash: whoever changes a file can make that, too."""
    tensors = {name: x.contiguous().clone() for name, x in tensors.items()}
    if chance.random() < 0.97:
        header["content_sha256"] = pot_file.content_hash(tensors, header)
    return save(tensors, metadata={pot_file.FORMAT: json.dumps(header)})


def change_header(sample: Sample, chance: random.Random) -> bytes:
    header = copy.deepcopy(sample.header)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        *way, last = chance.choice(list(places(header)))
        holder: Any = header
        for key in way:
            holder = holder[key]
        deed = chance.randrange(8)
        if deed == 0:
            del holder[last]
        elif deed == 1 and isinstance(holder, dict):
            holder[
                chance.choice(["extra", "policy_class", "window", "catalyst", "novelty", "seed"])
            ] = chance.choice(VALUES + NUMBERS)
        elif deed == 2 and isinstance(holder, list):
            holder.extend(holder[:2])
        elif deed == 3 and type(holder[last]) is int:
            holder[last] += chance.choice((-1, 1, 2, -7, 64, 10**6, 10**9))
        else:
            holder[last] = copy.deepcopy(chance.choice(chance.choice((VALUES, NUMBERS))))
    return packed(sample.tensors, header, chance)


def change_size(sample: Sample, chance: random.Random) -> bytes:
    """Another size everywhere in the header, so that it agrees with itself."""
    header = copy.deepcopy(sample.header)
    size = chance.choice((50, 97, 200, 5000, 10**6, 10**8, 2**31, 2**40))
    header["config"]["pot_size"] = size
    for layer in (header.get("plan") or {}).get("layers", []):
        if layer["size"] is not None:
            layer["size"] = size - 40 + layer["budget"]
    if chance.random() < 0.3:
        header["config"]["distill_to"] = chance.choice((1, 2, size - 1, size // 2))
    if chance.random() < 0.3:
        header["config"]["chunk_tokens"] = chance.choice((1, 2**31, 2**62, 2**63))
    return packed(sample.tensors, header, chance)


def change_json(sample: Sample, chance: random.Random) -> bytes:
    """JSON that json.dumps does not write, and names that stand twice."""
    header = copy.deepcopy(sample.header)
    *way, last = chance.choice(list(places(header)))
    holder: Any = header
    for key in way:
        holder = holder[key]
    header["content_sha256"] = pot_file.content_hash(sample.tensors, header)
    text = json.dumps(header)
    if isinstance(holder, dict) and chance.random() < 0.3:
        name = json.dumps(last)
        text = text.replace(
            f"{name}:", f"{name}: {chance.choice([*RAW[:4], '0', '{}'])}, {name}:", 1
        )
    else:
        holder[last] = MARK
        text = json.dumps(header).replace(f'"{MARK}"', chance.choice(RAW))
    return save(sample.tensors, metadata={pot_file.FORMAT: text})


def change_shape(sample: Sample, chance: random.Random) -> bytes:
    tensors = dict(sample.tensors)
    for _ in range(chance.choice((1, 1, 2))):
        name = chance.choice(list(tensors))
        x = tensors[name]
        if not x.ndim:  # changed before
            continue
        axis = chance.randrange(max(1, x.ndim))
        deeds: list[Callable[[], Any]] = [
            lambda x=x: x.flatten(),
            lambda x=x, axis=axis: x.narrow(axis, 0, x.shape[axis] // 2),
            lambda x=x, axis=axis: torch.cat([x] * 2, dim=axis),
            lambda x=x, axis=axis: torch.cat([x] * 8, dim=axis),
            lambda x=x: x[None],
            lambda x=x: x.transpose(0, -1),
            lambda x=x: x.new_zeros(()),
            lambda x=x: x.to(
                chance.choice(
                    (
                        torch.float64,
                        torch.float16,
                        torch.int64,
                        torch.bool,
                        torch.bfloat16,
                        torch.int8,
                    )
                )
            ),
            lambda: tensors[chance.choice(list(tensors))],
        ]
        deed = chance.randrange(len(deeds) + 3)
        if deed < len(deeds):
            tensors[name] = deeds[deed]()
        elif deed == len(deeds):
            tensors.pop(name)
        elif deed == len(deeds) + 1:
            tensors[
                chance.choice(
                    [
                        "layers.0.keys",
                        "layers.9.keys",
                        "catalyst",
                        "layers.0.past",
                        "layers.x.y",
                        "extra",
                        "\n",
                        "layers.0.queries",
                    ]
                )
            ] = x
        else:
            prefix = name.rsplit(".", 1)[0]
            for other in [one for one in tensors if one.startswith(f"{prefix}.")]:
                y = tensors[other]
                if y.ndim > 2:
                    tensors[other] = torch.cat([y, y], dim=2)
    return packed(tensors, copy.deepcopy(sample.header), chance)


def turned(x: torch.Tensor, axis: int) -> torch.Tensor:
    """The other way round. torch has no `flip` for floats of eight bits."""
    if x.dtype is torch.float8_e4m3fn:
        return x.view(torch.uint8).flip(axis).view(x.dtype)
    return x.flip(axis)


def change_values(sample: Sample, chance: random.Random) -> bytes:
    tensors = dict(sample.tensors)
    name = chance.choice([name for name, x in tensors.items() if x.numel()])
    x = tensors[name].clone()
    flat = x.view(-1)
    place = chance.randrange(flat.numel())
    if x.dtype in (torch.float32, torch.bfloat16):
        flat[place] = chance.choice(
            (float("nan"), float("inf"), -float("inf"), 3e38, -1e13, 1e11, 0.0)
        )
    elif x.dtype is torch.float8_e4m3fn:
        flat.view(torch.uint8)[place] = chance.choice((0x7F, 0xFF, 0x7E))
    else:
        flat[place] = (
            chance.choice((-1, 0, 96, 97, 127))
            if x.dtype is torch.int8
            else chance.choice((-1, 0, 1, 96, 97, 2**31, -(2**63), 2**62, 5))
        )
    if chance.random() < 0.3:
        x = turned(tensors[name], chance.randrange(x.ndim))
    tensors[name] = x
    return packed(tensors, copy.deepcopy(sample.header), chance)


def change_table(sample: Sample, chance: random.Random) -> bytes:
    """Offsets, shapes and types in the table of tensors that the bytes do not have."""
    content = packed(sample.tensors, copy.deepcopy(sample.header), chance)
    length = struct.unpack("<Q", content[:8])[0]
    table = json.loads(content[8 : 8 + length])
    names = [name for name in table if name != "__metadata__"]
    one, other = chance.sample(names, 2)
    deed = chance.randrange(7)
    if deed == 0:
        table[one]["data_offsets"] = table[other]["data_offsets"]
    elif deed == 1:
        table[one]["data_offsets"][chance.randrange(2)] = chance.choice(
            (-1, 0, 2**63, 2**64, 7, "x", None, 1.5)
        )
    elif deed == 2:
        table[one]["shape"] = chance.choice(
            ([], [2**40, 2**40], [-1], ["x"], [0], None, 7, [1] * 99)
        )
    elif deed == 3:
        table[one]["dtype"] = chance.choice(
            ("F64", "X9", None, 5, "F4", "C64", "BOOL", "F8_E8M0", "I8")
        )
    elif deed == 4:
        table[one], table[other] = table[other], table[one]
    elif deed == 5:
        table[one] = chance.choice((None, 1, [], {}, "x", {"dtype": "F32"}))
    else:
        table["__metadata__"] = chance.choice(
            (None, 1, [], "x", {}, {"infinipot-pot": 5}, {"infinipot-pot": None})
        )
    text = json.dumps(table).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + content[8 + length :]


def change_bytes(sample: Sample, chance: random.Random) -> bytes:
    content = bytearray(packed(sample.tensors, copy.deepcopy(sample.header), chance))
    deed = chance.randrange(6)
    if deed == 0:
        return bytes(content[: chance.randrange(len(content))])
    if deed == 1:
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    elif deed == 2:
        content[chance.randrange(3000)] = chance.randrange(256)
    elif deed == 3:
        content += bytes(chance.randrange(1, 99))
    elif deed == 4:
        content[:8] = struct.pack("<Q", chance.choice((0, 1, 2**20, 2**63, 10**8, 10**8 - 9, 77)))
    else:
        start = chance.randrange(len(content))
        content[start : start + chance.randrange(64)] = b""
    return bytes(content)


CHANGES = (change_header, change_header, change_header, change_size, change_json, change_shape, change_shape, change_values, change_table, change_bytes)  # fmt: skip
OLD_OPTIONS = {
    "coverage": 0.9, "begun": None, "pool_kind": None, "persist": None, "group": 8, "neighbours": 1024, "window": None,
}  # fmt: skip


def as_old(sample: Sample, version: int) -> Sample:
    """The same with the header of an older format."""
    header = copy.deepcopy(sample.header)
    header.pop("plan", None)
    header.pop("catalyst", None)
    header |= {"version": version, "config": {**OLD_OPTIONS, **header["config"]}}
    return dataclasses.replace(sample, header=header, kind=f"{sample.kind}, format {version}")


def changed_files(
    samples: list[Sample], seed: int, count: int
) -> Iterator[tuple[Sample, str, bytes]]:
    """Sample, kind of change, content."""
    chance = random.Random(seed)
    for number in range(count):
        sample = samples[number % len(samples)]
        if chance.random() < 0.08:
            sample = as_old(sample, chance.choice((1, 2)))
        change = chance.choice(CHANGES)
        yield sample, change.__name__, change(sample, chance)


# ---------------------------------------------------------------- what becomes of a file


def sentence(problem: BaseException) -> None:
    text = str(problem)
    assert "\n" not in text, text
    assert len(text) < 1000, text[:2000]
    assert text.isprintable(), text


TOLD = ("leaves no room", "so a chat has no pot", "give the question", "policy 'full' never")
"""What a working session may say about its options."""


@contextlib.contextmanager
def told() -> Iterator[None]:
    try:
        yield
    except ValueError as problem:
        if not any(text in str(problem) for text in TOLD):
            raise


def outcome(sample: Sample, path: Path) -> str:
    """`refused` by one sentence, or `works`. Raises for everything else."""
    try:
        header = {**pot_file.describe(path), "file_bytes": 0}
        shown = "".join(text for _, text in rows(path, header, *pot_file.in_force(path, header)))
        assert shown.isprintable(), shown
        shown.encode()
    except PotFileError as problem:
        sentence(problem)
    try:
        session = Session.load(path, sample.runner, sample.tokenizer, origin=sample.origin)
    except PotFileError as problem:
        sentence(problem)
        return "refused"
    twin = session.fork()
    with told():
        twin.ask("Why?", max_tokens=3)
    for _ in range(2):
        with told():
            session.append(TEXT[:60], question="Who?")
    assert torch.isfinite(session.logits).all()
    with told():
        session.chat("Who?", max_tokens=2)
    again = path.with_suffix(".again")
    session.save(again, origin=sample.origin)
    Session.load(again, sample.runner, sample.tokenizer, origin=sample.origin)
    return "works"
