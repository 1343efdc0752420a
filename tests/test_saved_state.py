"""What a pot file may say, at the number where each check turns; files with one tensor changed are
tried in test_hostile_pots.py, too."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pot_mutations import Sample, sample_files

from infinipot import Session, pot_file
from infinipot.engine.plan import LayerPlan
from infinipot.session.saved_state import (
    LARGEST,
    LONGEST_TEXT,
    check_fresh,
    check_ids,
    check_numbers,
    check_pot_layer,
    check_queries,
    check_room,
    check_tensors,
    check_window_layer,
)

KINDS = [
    "plain question", "int8", "fp8", "growing positions", "contrast", "memory", "newest catalyst", "h2o", "snapkv", "sliding",
    "recurrent", "both", "truncate", "full",
]  # fmt: skip
OPTIONAL = r"catalyst|layers\.\d+\.past"
FREE = {"keys": (2,), "values": (2,), "rotated": (2,), "keys_scale": (2,), "values_scale": (2,), "index": (2,), "past": (2,), "received": (2,),
        "queries": (2,), "fresh": (1,), "tail": (0,), "catalyst": (0, 1)}  # fmt: skip
"""Dimensions of any size, by the last word of a tensor's name. All others are the model's."""
EIGHT_BITS = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> list[Sample]:
    return sample_files(tmp_path_factory.mktemp("good"), KINDS)


def reader_of(sample: Sample) -> Any:
    """An empty reader with the options of a file."""
    header = sample.header
    config = pot_file.config_of(Path("a.pot"), header, None)
    templated = {"system": header["system"], "template": header["templated"]}
    session = Session(sample.runner, sample.tokenizer, config, **templated)
    session._reader.restore_plan(header["catalyst"], header["plan"])
    return session._reader


def refusal(check: Any, *arguments: Any) -> str:
    """What a check says; empty if it allows all."""
    try:
        check(*arguments)
    except ValueError as problem:
        return str(problem)
    return ""


def free_dimensions(name: str) -> tuple[int, ...]:
    if name.endswith("novelty"):
        return (2 if name.startswith("layers") else 1,)
    return FREE.get(name.split(".")[-1], ())


def test_every_tensor_has_one_form(samples: list[Sample]) -> None:
    """It cannot be missing, have another type, a dimension more, or another size than the model's."""
    seen = set()
    for sample in samples:
        reader = reader_of(sample)
        assert refusal(check_tensors, reader, sample.tensors, sample.header) == "", sample.kind
        for name, x in sample.tensors.items():
            seen.add(re.sub(r"\d+", "0", name))
            fixed = [dim for dim in range(x.ndim) if dim not in free_dimensions(name)]
            others = [x[None], x.to(torch.int16)]
            others += (
                [torch.cat((x.float(), x.float()[:1]), dim=0)[:0].to(x.dtype)] if 0 in fixed else []
            )
            for dim in fixed:
                more = x.float().index_select(dim, torch.tensor([*range(x.shape[dim]), 0]))
                others.append(more.to(x.dtype))
            for other in others:
                said = refusal(
                    check_tensors, reader, {**sample.tensors, name: other}, sample.header
                )
                wanted = [
                    ("any" if d in free_dimensions(name) else size)
                    for d, size in enumerate(x.shape)
                ]
                form = f"has type {other.dtype} and shape {list(other.shape)}, not {x.dtype} and {wanted}"
                assert said == f"its tensor {name!r} {form}", (sample.kind, other.shape)
            left = {key: y for key, y in sample.tensors.items() if key != name}
            said = refusal(check_tensors, reader, left, sample.header)
            if not re.fullmatch(OPTIONAL, name):
                assert said == f"its tensor {name!r} is missing"
            elif name == "catalyst":
                assert said == ""
        extra = {**sample.tensors, "extra": torch.zeros(1)}
        said = refusal(check_tensors, reader, extra, sample.header)
        assert said == "it has a tensor 'extra', which its options do not need"
        if sample.kind in EIGHT_BITS:
            assert sample.tensors["layers.0.keys"].dtype is EIGHT_BITS[sample.kind]
    assert {"layers.0.past", "layers.0.received", "layers.0.queries", "layers.0.rotated"} < seen
    assert {"layers.0.keys_scale", "layers.0.conv_states.0", "layers.0.recurrent_states.0"} < seen


def test_the_first_of_several_faults_is_told(samples: list[Sample]) -> None:
    reader = reader_of(samples[0])
    extra = {**samples[0].tensors, **{name: torch.zeros(1) for name in "zyxwvutsrqponm"}}
    assert "'m', which" in refusal(check_tensors, reader, extra, samples[0].header)


def test_every_part_is_checked(samples: list[Sample]) -> None:
    """Numbers, ids, entries, newest tokens, queries and windows of a whole file."""
    by_kind = {sample.kind: sample for sample in samples}

    def said(kind: str, change: Any) -> str:
        sample = by_kind[kind]
        tensors = {name: x.clone() for name, x in sample.tensors.items()}
        header = copy.deepcopy(sample.header)
        change(tensors, header["pot"])
        return refusal(check_tensors, reader_of(sample), tensors, header)

    def put(place: str, value: Any) -> Any:
        return lambda tensors, numbers: tensors.update({place: value(tensors[place])})

    question = "plain question"
    most = LONGEST_TEXT + 1
    for kind, change, words in (
        (question, lambda tensors, numbers: numbers.update(tokens_read=most), f"it has read {most:,} tokens"),
        (question, lambda tensors, numbers: numbers.update(tokens_read=LONGEST_TEXT), ""),
        (question, lambda tensors, numbers: numbers["positions"].append(1), "it has 3 positions, not 2"),
        (question, lambda tensors, numbers: numbers["peaks"].pop(), "it has 1 peaks, not 2"),
        (question, lambda tensors, numbers: numbers["peaks"].__setitem__(1, 3), "the peak of layer 1 is below its entries"),
        (question, put("hidden", lambda x: x * torch.nan), "its tensor 'hidden' holds nan to nan"),
        (question, put("catalyst", lambda x: x - 97), r"its 'catalyst' has token ids from -\d+ to -\d+, and .*"),
        (question, put("fresh", lambda x: x[:, 1:]), r"it has \d+ newest tokens, and layers with \d+"),
        ("snapkv", put("layers.1.queries", lambda x: x[:, :, :0]), "a layer has queries of 0 tokens"),
        ("sliding", put("layers.0.keys", lambda x: x[:, :, 1:]), r"a layer with a window of \d+ has \d+ entries"),
    ):  # fmt: skip
        assert re.fullmatch(words, said(kind, change)), (kind, words, said(kind, change))
    sample = by_kind["sliding"]
    assert [layer.window is None for layer in reader_of(sample).pot.layers][:2] == [False, True]


def layer_refusal(**changes: Any) -> str:
    """Of a file whose layer 1 has 20 entries, 12 of them survivors, 2 of these pinned, after 100
    tokens. changes: of that."""
    of: dict[str, Any] = {
        "length": 20,
        "survivors": 12,
        "size": 30,
        "pinned": 2,
        "tokens": 100,
        "reset": True,
        "position": None,
        "peak": 20,
    }
    of |= {"distillations": 1, "last": None, "other": {}} | changes  # fmt: skip
    index = torch.arange(of["survivors"])
    if of["survivors"] > of["pinned"]:
        newest = of["tokens"] - of["length"] + of["survivors"] - 1
        index[-1] = newest if of["last"] is None else of["last"]
    own = {name: torch.zeros(1, 1, of["length"], 4) for name in ("keys", "values")}
    own |= {"index": index.view(1, 1, -1), "novelty": torch.zeros(1, 1, of["survivors"])}
    own |= {name: torch.zeros(1, 1, count, 4) for name, count in of["other"].items()}
    position = of["length"] if of["position"] is None else of["position"]
    numbers = {"tokens_read": of["tokens"], "pinned": of["pinned"], "positions": [0, position]}
    numbers |= {"peaks": [0, of["peak"]], "distillations": of["distillations"]}
    layer: Any = SimpleNamespace(size=of["size"], reset=of["reset"])
    plan = LayerPlan(size=30, budget=10, sinks=0, recent=0, pool=0, pool_mode="avg")
    return refusal(check_pot_layer, layer, own, 1, {"pot": numbers}, plan)


UNREAD = {"distillations": 0, "survivors": 0, "tokens": 20}
ORDER = "the survivors of layer 1 are not in the order of the text"
LEAVES = "layer 1 has {} survivors, and a distillation leaves 12"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        *(({}, ""), (UNREAD, ""), ({"length": 30, "peak": 30}, ""), ({"peak": 21}, "")),
        ({"length": 31, "peak": 31}, "31 entries in a pot of 30"),
        ({"length": 31, "peak": 31, "size": None}, ""),
        ({"peak": 19}, "the peak of layer 1 is below its entries"),
        *(({"other": {name: 20}}, "") for name in ("keys_scale", "values_scale", "rotated", "received")),
        *(
            ({"other": {name: count}}, "the entries of layer 1 differ in number")
            for name in ("values", "keys_scale", "values_scale", "rotated", "received")
            for count in (19, 21)
        ),
        ({"other": {"past": 12}}, ""),
        *(({"other": {name: 13}}, "the survivors of layer 1 differ in number") for name in ("novelty", "past")),
        ({"length": 12, "peak": 12, "tokens": 12, "last": 11}, ""),
        ({"length": 12, "peak": 12, "tokens": 11}, "layer 1 has 12 entries of 11 tokens"),
        ({"length": 11}, "layer 1 has 11 entries of 100 tokens"),
        ({**UNREAD, "length": 1, "pinned": 1, "tokens": 1}, ""),
        ({**UNREAD, "length": 0, "pinned": 0, "tokens": 0}, "layer 1 has 0 entries, 0 of them pinned"),
        ({**UNREAD, "length": 1, "pinned": 2, "tokens": 1}, "layer 1 has 1 entries, 2 of them pinned"),
        ({"position": 19}, "layer 1 is at position 19 with 20 entries"),
        ({"position": 21}, "layer 1 is at position 21 with 20 entries"),
        ({"position": 21, "reset": False}, ""),
        ({"position": 100, "reset": False}, ""),
        ({"position": 101, "reset": False}, "layer 1 is at position 101 with 20 entries"),
        ({**UNREAD, "tokens": 21}, "layer 1 has survivors of no distillation"),
        ({"distillations": 0, "tokens": 20, "last": 11}, "layer 1 has survivors of no distillation"),
        ({"distillations": 0, "survivors": 1, "pinned": 1}, "layer 1 has survivors of no distillation"),
        ({"survivors": 2}, ""),
        ({"survivors": 1}, LEAVES.format(1)),
        ({"survivors": 13}, LEAVES.format(13)),
        ({"last": 91}, ""),
        ({"last": 92}, ORDER),
        ({"last": 11}, ""),
        ({"last": 10}, ORDER),
        ({"last": 9}, ORDER),
        ({"last": -1}, ORDER),
        ({"pinned": 0, "survivors": 1, "last": -1}, ORDER),
        ({"pinned": 0, "survivors": 1, "last": 0}, ""),
        ({"pinned": 0, "survivors": 0}, ""),
        ({"pinned": 12, "survivors": 12}, ""),
    ],
)  # fmt: skip
def test_the_numbers_of_a_layer(changes: dict[str, Any], words: str) -> None:
    assert layer_refusal(**changes) == words


def test_pinned_entries_come_first_in_every_head() -> None:
    good = torch.tensor([[[0, 1, 5], [0, 1, 7]]])
    for index, words in (
        (good, ""),
        (good + torch.tensor([[[0], [1]]]), ORDER),
        (good.flip(-1), ORDER),
        (torch.tensor([[[0, 1, 5], [0, 2, 7]]]), ORDER),
        (torch.tensor([[[0, 1, 5], [0, 7, 1]]]), ORDER),
    ):
        keys = torch.zeros(1, 2, 3, 4)
        own = {"keys": keys, "values": keys, "index": index, "novelty": torch.zeros(1, 2, 3)}
        numbers = {"tokens_read": 8, "pinned": 2, "positions": [0, 3], "peaks": [0, 3]}
        plan = LayerPlan(size=9, budget=1, sinks=0, recent=0, pool=0, pool_mode="avg")
        header = {"pot": {**numbers, "distillations": 1}}
        layer: Any = SimpleNamespace(size=9, reset=True)
        assert refusal(check_pot_layer, layer, own, 1, header, plan) == words


def test_stored_numbers_have_a_size() -> None:
    for name, values, words in (
        ("hidden", [-LARGEST, LARGEST], ""),
        ("hidden", [5.0], ""),
        ("hidden", [], ""),
        ("hidden", [2 * LARGEST], "its tensor 'hidden' holds 2e+12 to 2e+12"),
        ("hidden", [-2 * LARGEST, 0], "its tensor 'hidden' holds -2e+12 to 0"),
        ("hidden", [torch.inf], "its tensor 'hidden' holds inf to inf"),
        ("layers.0.novelty", [0, torch.inf], ""),
        ("layers.0.novelty", [-torch.inf, 0], "its tensor 'layers.0.novelty' holds -inf to 0"),
        ("novelty", [torch.nan], "its tensor 'novelty' holds nan to nan"),
    ):
        assert refusal(check_numbers, name, torch.tensor(values)) == words
    assert refusal(check_numbers, "tail", torch.tensor([1 << 60])) == ""
    assert refusal(check_numbers, "keys", torch.ones(3).to(torch.float8_e4m3fn)) == ""


def test_stored_ids_are_the_model_s() -> None:
    reader: Any = SimpleNamespace(runner=SimpleNamespace(vocabulary=97))
    for name in ("fresh", "newest", "tail", "catalyst"):
        for ids, words in (([0, 96], ""), ([0, 97], "from 0 to 97"), ([-1, 5], "from -1 to 5")):
            told = words and f"its {name!r} has token ids {words}, and the model has ids below 97"
            assert refusal(check_ids, reader, {name: torch.tensor([ids])}) == told
    assert refusal(check_ids, reader, {"fresh": torch.zeros(1, 0, dtype=torch.long)}) == ""
    for shape, allowed in (((1, 1), True), ((2, 3), True), ((3, 3), False), ((0, 3), False), ((1, 0), False)):  # fmt: skip
        catalyst = torch.zeros(shape, dtype=torch.long)
        told = "" if allowed else "its catalyst has no ids"
        assert refusal(check_ids, reader, {"catalyst": catalyst}) == told


def test_newest_tokens_of_a_file() -> None:
    for distils, ids, scored, words in (
        (True, 8, 8, ""),
        (True, 8, 0, ""),
        (True, 8, 9, "it has the novelty of 9 tokens of 8"),
        (True, 7, 0, "it has 7 newest tokens, and layers with 8"),
        (False, 0, 8, ""),
        (False, 8, 8, "it has 8 newest tokens, and layers with 8"),
    ):
        reader: Any = SimpleNamespace(pot=SimpleNamespace(distils=distils))
        own = {"keys": torch.zeros(1, 2, 20, 4), "index": torch.zeros(1, 2, 12)}
        tensors = {"fresh": torch.zeros(1, ids), "novelty": torch.zeros(1, scored)}
        assert refusal(check_fresh, reader, own, tensors) == words


def test_queries_and_windows_of_a_file() -> None:
    for rows, most, words in ((1, 8, ""), (8, 8, ""), (9, 8, "9"), (0, 8, "0")):
        layer: Any = SimpleNamespace(attention_stats=SimpleNamespace(rows=most, hidden_rows=0))
        own = {"queries": torch.zeros(1, 4, rows, 16)}
        told = words and f"a layer has queries of {words} tokens"
        assert refusal(check_queries, layer, own) == told
        assert refusal(check_queries, layer, {}) == ""
        assert refusal(check_queries, SimpleNamespace(attention_stats=None), own) == ""
    for window, length, position, allowed in (
        *((8, 7, 7, True), (8, 7, 90, True), (8, 8, 90, False), (8, 7, 6, False)),
        *((8, 0, 0, True), (1, 1, 9, True), (1, 2, 9, False), (3, 2, 9, True), (3, 3, 9, False)),
    ):
        layer = SimpleNamespace(window=window)
        own = {name: torch.zeros(1, 2, length, 4) for name in ("keys", "values", "rotated")}
        told = "" if allowed else f"a layer with a window of {window} has {length} entries"
        assert refusal(check_window_layer, layer, own, position) == told
        for name in ("values", "rotated"):
            other = {**own, name: torch.zeros(1, 2, length + 1, 4)}
            assert refusal(check_window_layer, layer, other, position).startswith("a layer with")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        ({"waiting": 3}, "3 ids wait to be read, which policy 'own' lets none"),
        ({"waiting": 3, "cuts": True}, ""),
        ({"bounded": False, "distillations": 0, "catalyst": False, "length": 99}, ""),
        ({"bounded": False}, "policy 'own' never distils"),
        ({"leaves": False}, "it leaves no room"),
        ({"leaves": False, "bounded": False, "distillations": 0}, ""),
        ({"leaves": False, "whole": True}, ""),
        ({"room": False}, "it has no room for its catalyst"),
        ({"catalyst": False, "room": False, "length": 12}, ""),
        ({"catalyst": False, "length": 13}, "it has no catalyst"),
        ({"catalyst": False, "length": 13, "needs": frozenset({"novelty"})}, ""),
    ],
)
def test_a_restored_pot_can_read_on(changes: dict[str, Any], words: str) -> None:
    """With 2 pinned entries, and budgets of 10 and 20."""
    of: dict[str, Any] = {
        "waiting": 0,
        "cuts": False,
        "bounded": True,
        "distillations": 1,
        "catalyst": True,
        "room": True,
        "whole": False,
    }
    of |= {"leaves": True, "length": 20, "needs": frozenset({"catalyst"})} | changes  # fmt: skip
    layers = [SimpleNamespace(length=of["length"])] * 2

    def leaves_room(catalyst: Any, pinned: int) -> None:
        assert pinned == 2
        if not of["leaves"]:
            raise ValueError("it leaves no room")

    reader: Any = SimpleNamespace(
        pot=SimpleNamespace(distillations=of["distillations"], pinned=2, bounded=layers),
        policy=SimpleNamespace(name="own", cuts=of["cuts"], bounded=of["bounded"]),
        plan=SimpleNamespace(
            whole=of["whole"],
            needs=of["needs"],
            layers=[SimpleNamespace(budget=10), SimpleNamespace(budget=20)],
        ),
        last_catalyst=torch.zeros(1, 3) if of["catalyst"] else None,
        check_room=leaves_room,
        has_room_for=lambda pot, catalyst: of["room"],
    )
    assert refusal(check_room, reader, of["waiting"]) == words
