"""The blocks of figures in README and docs: each is computed from records in benchmarks/results.

`figures.py` writes them into the documents. A block is a list of lines without an empty one.
"""

from __future__ import annotations

import functools
import json
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
Record = dict[str, Any]
Block = Callable[[], list[str]]
K = 1024
QWEN = "qwen2.5-0.5b.gguf"
LARGER = "qwen2.5-1.5b.gguf"
SMALL_SHAPE = "qwen2.5-0.5b-shape"
DEPTHS = (0.1, 0.5, 0.9)
KEY_BY_CHANCE = 5 * math.log(10)
"""Nats of a pass key of five digits."""
DEFAULT = "infinipot:pool=45:pool_kind=trailing:distill_to=3072:recent=256"
FACTS = "infinipot:preset=facts:distill_to=3072:recent=256"
FACTS_0 = "infinipot:preset=facts:distill_to=3072:recent=0"
PAPER = "infinipot:preset=paper"
GENERAL = ":catalyst=general"
RIVALS = ("keydiff", "h2o", "sirllm", "snapkv", "tova", "streaming", "truncate")
BLOCKS: dict[str, Block] = {}


def block(function: Block) -> Block:
    """Register a block under the name of its function. It is computed once."""
    BLOCKS[function.__name__.replace("_", "-")] = functools.cache(function)
    return function


@functools.cache
def records(name: str) -> list[Record]:
    text = (RESULTS / f"{name}.jsonl").read_text("utf-8")
    return [json.loads(line) for line in text.splitlines()]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    rule = ["---"] * len(head)
    return [f"| {' | '.join(row)} |" for row in (head, rule, *rows)]


def percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f}"


# ---------------------------------------------------------------- questions that come later

LATER = (
    ("full context", "full", "full"),
    ("**the default** (`outliers`)", "infinipot", "outliers"),
    ("`keydiff`", "keydiff", "keydiff"),
    ("`infinipot`, catalyst `general`", f"infinipot{GENERAL}", f"infinipot{GENERAL}"),
    ("`truncate`", "truncate", None),
)
RELEVANCE = (("`relevance`", "relevance"),)
FACT_LENGTHS = (16 * K, 128 * K)
"""Tokens of the texts with facts."""


def document_mean(method: str, talks: bool, known: bool = False) -> float:
    """The mean of the tasks' mean scores, over documents that all methods have read. talks: of the
    LoCoMo conversations, else of all others. known: the question was known while reading."""
    rows = [r for r in records("documents") if (r["task"] == "locomo") == talks]
    later = [r for r in rows if r["question"] != "known"]
    shared = set.intersection(
        *({r["document"] for r in later if r["method"] == name} for _, name, _ in LATER)
    )
    if known:
        later = [r for r in rows if r["question"] == "known"]
    tasks: dict[str, list[float]] = {}
    for row in later:
        if row["method"] == method and row["document"] in shared:
            tasks.setdefault(row["task"], []).extend(row["scores"].values())
    return sum(sum(some) / len(some) for some in tasks.values()) / len(tasks)


def facts_found(method: str | None, length: int, distractors: bool = True) -> str:
    wanted = (method, length, distractors)
    right = [
        r["right"]
        for r in records("facts")
        if (r["method"], r["length"], r.get("distractors", True)) == wanted
    ]
    if not right:
        return ""
    return f"{sum(right)} of {len(right)}"


@block
def questions_later() -> list[str]:
    whole = {talks: document_mean("full", talks) for talks in (False, True)}
    rows = []
    for name, method, hidden in LATER:
        scores = {talks: document_mean(method, talks) for talks in (False, True)}
        shown = [f"{scores[talks]:.1f} ({scores[talks] / whole[talks]:.2f})" for talks in scores]
        rows.append([name, *shown, facts_found(hidden, 16 * K), facts_found(hidden, 128 * K)])
    head = ("method", "documents (share of full)", "LoCoMo", "facts, 16K", "facts, 131K")
    return table(head, rows)


@block
def chats_texts() -> list[str]:
    rows = [row for row in records("chat") if row["method"] == "full"]
    made = [row for row in rows if row["task"] == "generated"]
    talks = [row for row in rows if row["task"] == "locomo"]
    tokens = statistics.mean(row["text_tokens"] for row in made)
    questions = sum(len(row["scores"]) for row in talks)
    return [
        f"{len(made)} generated conversations of {made[0]['turns']} turns, {tokens:,.0f} tokens on average, with "
        f"{len(made[0]['scores'])} facts told in the first two fifths and asked for at the end, and "
        f"{len(talks)} LoCoMo conversations with {questions} questions."
    ]


CHATTERS = (
    ("full context", "full"),
    ("**the default** (`outliers`)", "infinipot"),
    ("`keydiff`", "keydiff"),
    ("`truncate`", "truncate"),
    ("`sliding_window`", "sliding_window"),
)


@block
def chats() -> list[str]:
    """The mean over all questions, in per cent, of chats from what was said early."""
    scores: dict[tuple[str, str, int | None], list[float]] = {}
    for row in records("chat"):
        cell = (row["method"], row["task"], row["options"].get("pot_size"))
        scores.setdefault(cell, []).extend(row["scores"].values())
    cells = [(task, pot) for task in ("generated", "locomo") for pot in (4 * K, 2 * K)]
    rows = []
    for name, method in CHATTERS:
        found = [
            scores.get((method, task, None if method == "full" else pot)) for task, pot in cells
        ]
        rows.append([name, *(f"{statistics.mean(some):.1f}" if some else "" for some in found)])
    heads = {"generated": "facts found, %", "locomo": "LoCoMo, F1"}
    return table(("chats", *(f"{heads[task]}, pot {pot:,}" for task, pot in cells)), rows)


@block
def questions_known() -> list[str]:
    whole = document_mean("full", talks=False)
    rows = [
        ["full context", f"{whole:.1f} (1.00)", *(facts_found("full", n) for n in FACT_LENGTHS)]
    ]
    for name, method in (("**the default** (`infinipot`)", "infinipot"), *RELEVANCE):
        score = document_mean(method, talks=False, known=True)
        found = [facts_found(method, length) for length in FACT_LENGTHS]
        rows.append([name, f"{score:.1f} ({score / whole:.2f})", *found])
    head = ("method", "documents (share of full)", "facts, 16K", "facts, 131K")
    return table(head, rows)


@block
def questions_later_texts() -> list[str]:
    rows = [row for row in records("documents") if row["method"] == "full"]
    talks = [row for row in rows if row["task"] == "locomo"]
    others = [row for row in rows if row["task"] != "locomo"]
    asked = [sum(len(row["scores"]) for row in some) for some in (others, talks)]
    facts = [
        r
        for r in records("facts")
        if (r["method"], r["length"]) == ("full", 16 * K) and r.get("distractors", True)
    ]
    texts = len({r["trial"] for r in facts})
    return [
        f"Documents: {asked[0]} questions to {len(others)} documents of {len({r['task'] for r in others})} "
        f"tasks, the mean of the tasks. LoCoMo: {asked[1]} questions to {len(talks)} conversations. Facts: "
        f"{len(facts) // texts} natural facts in each of {texts} texts, public-domain novels around them."
    ]


ALONE = (
    ("full context", "full"),
    ("**the default**, question known (`infinipot`)", "infinipot:catalyst=question"),
    ("`relevance`, question known", "relevance"),
    ("**the default**, question unknown (`outliers`)", "outliers"),
)


@block
def facts_alone() -> list[str]:
    rows = []
    for name, method in ALONE:
        found = [facts_found(method, length, distractors=False) for length in FACT_LENGTHS]
        rows.append([name, *found])
    return table(("without distractors", "facts, 16K", "facts, 131K"), rows)


def share_kept(method: str, distractors: bool, right: bool | None = None) -> float:
    """Mean share of a fact's entries in the pot at 131K tokens, in per cent."""
    kept = [
        row["kept"]
        for row in records("facts")
        if (row["method"], row["length"]) == (method, 128 * K)
        and row.get("distractors", True) is distractors
        and right in (None, row["right"])
    ]
    return 100 * sum(kept) / len(kept)


@block
def facts_kept() -> list[str]:
    default = share_kept("infinipot:catalyst=question", distractors=False)
    unfound = share_kept("outliers", distractors=True, right=False)
    return [
        f"Where facts of 131K tokens are lost: with the question known, `relevance` keeps {share_kept('relevance', True):.0f} % of "
        f"a fact's entries, the default {default:.0f} % of those without distractors. With the question unknown, facts "
        f"that are not found have {unfound:.0f} % of their entries left."
    ]


def task_means(name: str, method: str) -> dict[str, float]:
    """The mean score of each task, of rows with one score or several."""
    tasks: dict[str, list[float]] = {}
    for row in records(name):
        if row["method"] == method and row["model"] == LARGER:
            scores = row["scores"].values() if "scores" in row else [row["score"]]
            tasks.setdefault(row["task"], []).extend(scores)
    return {task: sum(some) / len(some) for task, some in tasks.items()}


KNOWN = (
    ("full context", "full"),
    ("**the default** (`infinipot`)", "infinipot"),
    ("`relevance`", "relevance"),
)


@block
def benchmarks_known() -> list[str]:
    rows = []
    for name, method in KNOWN:
        cells = [name]
        for source in ("longbench", "ruler_documents"):
            means = task_means(source, method)
            cells.append(f"{sum(means.values()) / len(means):.1f}")
        keys = [
            row["right"]
            for row in records("needle")
            if (row["model"], row["method"], row["haystack"]) == (LARGER, method, "books")
        ]
        cells.append(f"{sum(keys)} of {len(keys)}" if keys else "")
        rows.append(cells)
    head = ("method", "LongBench, 16 tasks", "RULER, 11 tasks, 16K", "pass keys in novels, 131K")
    return table(head, rows)


def later_row() -> list[str]:
    whole = document_mean("full", True)
    ours, general, cut = (
        document_mean(name, True) / whole
        for name in ("infinipot", f"infinipot{GENERAL}", "truncate")
    )
    return [
        "questions asked after reading, Qwen2.5-Coder-1.5B, pot 4,096",
        f"long conversations: {ours:.2f} of full context's score (general catalyst {general:.2f}, truncation "
        f"{cut:.2f}); facts in novels of 131K tokens: {facts_found('outliers', 128 * K)} (general catalyst "
        f"{facts_found(f'infinipot{GENERAL}', 128 * K)}, KeyDiff {facts_found('keydiff', 128 * K)})",
        "`infinipot eval documents`, `infinipot needle --kind facts`",
    ]


# ---------------------------------------------------------------- needles


def needles(method: str, seeds: Sequence[int], **fields: Any) -> list[Record]:
    """The records of a method on texts of these seeds. Without other fields: the small Qwen, one
    needle in essays."""
    wanted = {"model": QWEN, "haystack": "essays", "kind": "number", "method": method, **fields}
    return [
        record
        for record in records("needle")
        if record["seed"] in seeds and all(record[key] == value for key, value in wanted.items())
    ]


def cell(some: Sequence[Record], length: int, usual: int = 8) -> str:
    """Right answers in % at each depth, and the number of trials if it is not the usual one."""
    shares = []
    trials = set()
    for depth in DEPTHS:
        right = [r["right"] for r in some if (r["length"], r["depth"]) == (length, depth)]
        if not right:
            return ""
        shares.append(percent(sum(right), len(right)))
        trials.add(len(right))
    text = " / ".join(shares)
    if trials == {usual}:
        return text
    return f"{text} ({' to '.join(map(str, sorted({min(trials), max(trials)})))})"


def found(some: Sequence[Record], *lengths: int) -> tuple[int, int]:
    right = [record["right"] for record in some if record["length"] in lengths]
    return sum(right), len(right)


def found_text(some: Sequence[Record], *lengths: int) -> str:
    right, asked = found(some, *lengths)
    return f"{right} of {asked}"


def needle_row(name: str, some: Sequence[Record], lengths: Sequence[int]) -> list[str]:
    first = some[0]
    kept = first["options"].get("distill_to")
    seeds = ", ".join(str(seed) for seed in sorted({record["seed"] for record in some}))
    about = [name, first["question"] or "", f"{kept:,}" if kept else "", seeds]
    return [*about, *[cell(some, length) for length in lengths]]


LENGTHS = (4 * K, 16 * K, 64 * K, 128 * K, K * K)
HEAD = ("method", "question", "kept", "seeds", "4K", "16K", "64K", "131K", "1M")
SHOWN = (
    ("**the default**", DEFAULT, (1, 2)),
    ("trailing 45, recent 256", "infinipot:pool=45:pool_kind=trailing:recent=256", (1,)),
    ("around 21, once, recent 256", "infinipot:pool=21:persist=once:recent=256", (1, 2)),
    ("around 13", "infinipot:pool=13:recent=0", (0, 1)),
    ("around 7", "infinipot:recent=0", (0,)),
    ("no pooling, novelty 0", "infinipot:novelty=0:pool=0:recent=0", (0,)),
    ("preset `paper`", PAPER, (0,)),
    ("**preset `facts`**", FACTS, (1,)),
    ("preset `facts`, recent 0", FACTS_0, (1,)),
    ("`general`, around 7", f"infinipot{GENERAL}:recent=0", (0,)),
    ("`general`, preset `paper`", f"{PAPER}{GENERAL}", (0,)),
    *[(f"`{name}`", name, (0,)) for name in RIVALS],
)


@block
def needles_in_essays() -> list[str]:
    rows = [needle_row(name, needles(label, seeds), LENGTHS) for name, label, seeds in SHOWN]
    return table(HEAD, rows)


@block
def needles_said() -> list[str]:
    default = needles(DEFAULT, (1, 2))
    facts = needles(FACTS, (1,))
    plain = needles("infinipot:novelty=0:pool=0:recent=0", (0,))
    paper = needles(PAPER, (0,))
    others = [record for name in RIVALS for record in needles(name, (0,))]
    once = needles("infinipot:pool=21:persist=once:recent=256", (1, 2))
    by_seed = [[r for r in once if r["seed"] == seed] for seed in (1, 2)]
    first, second = (found_text(some, K * K) for some in by_seed)
    return [
        f"- Question known, the default: {found_text(default, 4 * K, 16 * K, 64 * K)} up to 64K, "
        f"{found_text(default, 128 * K)} at 131K, {found_text(default, K * K)} at a million tokens.",
        f"- Without smoothing, at 131K: {found_text(plain, 128 * K)} with novelty 0, "
        f"{found_text(paper, 128 * K)} with the preset `paper`.",
        f"- Question unknown, preset `facts`: {found_text(facts, 16 * K)} at 16K, "
        f"{found_text(facts, 128 * K)} at 131K, {found_text(facts, K * K)} at a million tokens.",
        f"- {', '.join(f'`{name}`' for name in RIVALS)}: "
        f"{found_text(others, 64 * K, 128 * K)} at 64K and 131K together.",
        f"- Chance is large: around 21, once, recent 256 found {first} at a million tokens on texts "
        f"of seed 1 and {second} on texts of seed 2.",
    ]


@block
def needle_scores() -> list[str]:
    return table(
        ("catalyst", "contrast", "among the best of 131,072", "of 1,048,576"),
        [
            [
                f"`{r['catalyst']}`",
                f"`{r['contrast']}`" if r["contrast"] else "",
                f"{100 * r['kept_of_131072']:.1f} %",
                f"{100 * r['kept_of_1048576']:.1f} %",
            ]
            for r in records("needle_scores")
        ],
    )


@block
def needles_of_the_larger_model() -> list[str]:
    shown = (
        ("the default", DEFAULT),
        ("around 13", "infinipot:pool=13:recent=0"),
        ("around 7", "infinipot:recent=0"),
        ("preset `paper`", PAPER),
        ("preset `facts`, recent 0", FACTS_0),
    )
    lengths = (16 * K, 128 * K)
    rows = [needle_row(name, needles(label, (1,), model=LARGER), lengths) for name, label in shown]
    return table((*HEAD[:4], "16K", "131K"), rows)


@block
def needles_in_filler() -> list[str]:
    shown = (
        ("`general`, around 7", f"infinipot{GENERAL}:recent=0"),
        ("`general`, around 13", f"infinipot:pool=13{GENERAL}:recent=0"),
        ("`general`, trailing 45, recent 256", f"{DEFAULT}{GENERAL}"),
        ("`general`, preset `paper`", f"{PAPER}{GENERAL}"),
        ("preset `facts`, recent 0", FACTS_0),
    )
    lengths = (16 * K, 128 * K, K * K)
    rows = [
        needle_row(name, needles(label, (0, 1), haystack="filler"), lengths)
        for name, label in shown
    ]
    return table((*HEAD[:4], "16K", "131K", "1M"), rows)


@block
def every_policy_once() -> list[str]:
    some = [r for r in records("needle") if (r["model"], r["seed"]) == ("smollm2", 5)]
    by_method: dict[tuple[str, str], list[Record]] = {}
    for record in some:
        by_method.setdefault((record["method"], record["question"] or ""), []).append(record)
    rows = []
    for (method, question), own in by_method.items():
        mean = [r["kept"] for r in own if r["kept"] is not None]
        if "prefill=whole" in method:  # the record is of the pot before its one distillation
            mean = []
        share = f"{100 * sum(mean) / len(mean):.0f} %" if mean else ""
        kept = own[0]["options"].get("distill_to")
        right = found_text(own, 2 * K)
        rows.append([f"`{method}`", question, str(kept or ""), right, share])
    head = ("method", "question", "kept", "right")
    return table((*head, "of the needle's tokens kept"), rows)


def of_seed_23() -> dict[tuple[str, str], list[Record]]:
    """The records of eight pass keys in one text, by method and whether the question was known."""
    by_method: dict[tuple[str, str], list[Record]] = {}
    for record in records("needle"):
        if (record["model"], record["seed"]) == ("smollm2", 23):
            key = record["method"], record["question"] or ""
            by_method.setdefault(key, []).append(record)
    return by_method


def mean_loss(some: Sequence[Record]) -> float:
    return sum(record["loss"] for record in some) / len(some)


@block
def eight_keys() -> list[str]:
    rows = []
    for (method, question), own in sorted(of_seed_23().items(), key=lambda one: mean_loss(one[1])):
        kept = [record["kept"] for record in own if record["kept"] is not None]
        share = f"{100 * sum(kept) / len(kept):.0f} %" if kept else ""
        budget = own[0]["options"].get("distill_to")
        within = sum(record["loss"] < KEY_BY_CHANCE / 2 for record in own)
        rows.append(
            [
                f"`{method}`",
                question,
                f"{budget:,}" if budget else "",
                found_text(own, 7 * K),
                f"{mean_loss(own):.1f}",
                f"{within} of {len(own)}",
                share,
            ]
        )
    head = ("method", "question", "kept", "right", "nats of a key", "below half of chance")
    return table((*head, "of the keys' tokens kept"), rows)


@block
def eight_keys_said() -> list[str]:
    return [
        f"Five digits by chance cost {KEY_BY_CHANCE:.1f} nats; a model that is sure of other digits pays more."
    ]


@block
def hops() -> list[str]:
    shown = (
        ("full context", "full", QWEN),
        ("the default", DEFAULT, QWEN),
        ("around 7", "infinipot:recent=0", QWEN),
        ("preset `facts`, recent 0", FACTS_0, QWEN),
        ("`general`, around 7", f"infinipot{GENERAL}:recent=0", QWEN),
        ("`streaming`", "streaming", QWEN),
        ("the larger model, full context", "full", LARGER),
        ("the larger model, the default", DEFAULT, LARGER),
    )
    rows = []
    for name, method, model in shown:
        some = [r for r in records("hops") if (r["method"], r["model"]) == (method, model)]
        cells = []
        for length in (16 * K, 64 * K):
            right = [
                [r["right"] for r in some if (r["length"], r["hops"]) == (length, n)]
                for n in range(3)
            ]
            cells.append(" / ".join(f"{sum(x)} of {len(x)}" for x in right) if right[0] else "")
        rows.append([name, some[0]["question"] or "", *cells])
    return table(("0 / 1 / 2 hops", "question", "16K", "64K"), rows)


# ---------------------------------------------------------------- RULER

RULER = (
    ("full context", "full"),
    ("**the default**", DEFAULT),
    ("trailing 45", "infinipot:pool=45:pool_kind=trailing:recent=0"),
    ("trailing 31, recent 256", DEFAULT.replace("45", "31")),
    ("around 13", "infinipot:pool=13:recent=0"),
    ("around 7", "infinipot:recent=0"),
)
RULER_TASKS = (
    ("niah_single 1, 2, 3", [f"niah_single_{n}" for n in (1, 2, 3)]),
    ("niah_multikey 1, 2, 3", [f"niah_multikey_{n}" for n in (1, 2, 3)]),
    ("niah_multiquery, multivalue", ["niah_multiquery", "niah_multivalue"]),
    ("vt, cwe, fwe", ["ruler_vt", "ruler_cwe", "ruler_fwe"]),
)


def ruler_scores(method: str) -> dict[str, float]:
    """Scores by task on texts 21 to 50, which chose nothing."""
    return {
        r["task"]: r["score"]
        for r in records("ruler")
        if (r["method"], r.get("first"), r["samples"]) == (method, 20, 30)
    }


def ruler_mean(method: str) -> float:
    some = ruler_scores(method).values()
    return sum(some) / len(some)


@block
def ruler() -> list[str]:
    kept = {r["method"]: r.get("distill_to") for r in records("ruler")}
    head = [f"{name} ({kept[label]:,})" if kept[label] else name for name, label in RULER]
    rows = [
        [
            name,
            *[
                ", ".join(f"{100 * ruler_scores(label)[task]:.0f}" for task in some)
                for _, label in RULER
            ],
        ]
        for name, some in RULER_TASKS
    ]
    means = [f"{100 * ruler_mean(label):.1f}" for _, label in RULER]
    shares = [f"{ruler_mean(label) / ruler_mean('full'):.2f}" for _, label in RULER]
    rows += [["mean of 11", *means], ["share of full context", *shares]]
    return table(["", *head], rows)


# ---------------------------------------------------------------- speed


def bench(model: str, length: int | None = None) -> Record:
    """The newest record of `infinipot bench` for a model, of those with this length."""
    return [
        r
        for r in records("bench")
        if r["model"]["name"] == model
        and (length is None or length in {row["length"] for row in r["rows"]})
    ][-1]


def row_of(document: Record, length: int, what: str = "pot") -> Record:
    (row,) = [r for r in document["rows"] if (r["length"], r["what"]) == (length, what)]
    return row


def gigabytes(count: int, digits: int = 1) -> str:
    return f"{count / 1e9:.{digits}f}"


@block
def speed_8b() -> list[str]:
    document = bench("llama-8b-shape")
    rows = [
        [
            f"{r['length']:,}",
            f"{r['prefill_tps']:,.0f} tokens/s",
            f"{r['first_token_s']:.2f} s",
            f"{r['decode_tps']:.0f} tokens/s",
            f"{r['batch_tps']:.0f} tokens/s",
            f"{gigabytes(r['peak_bytes'])} GB",
            f"{gigabytes(r['batch_peak_bytes'])} GB",
        ]
        for r in document["rows"]
        if r["what"] == "pot"
    ]
    head = ("tokens", "reading", "first token", "decoding", "8 answers together")
    return table((*head, "peak, one answer", "peak, 8 answers"), rows)


@block
def speed_8b_parts() -> list[str]:
    document = bench("llama-8b-shape")
    tps = {r["what"]: r["prefill_tps"] for r in document["rows"] if r["length"] == 32 * K}
    shares = document["parts"]["shares"]
    parts = ", ".join(f"{name.replace('_', ' ')} {100 * x:.1f} %" for name, x in shares.items())
    return [
        f"Of the time to read 32,768 tokens, novelty takes {100 * (1 - tps['pot'] / tps['no nuc']):.1f} %, "
        f"novelty and catalyst together {100 * (1 - tps['pot'] / tps['loop']):.1f} %. By part, each measured "
        f"by itself: {parts}. (The paper's CD time is 1 to 3 % of its time to the first token.)"
    ]


@block
def beside_kvpress() -> list[str]:
    rows = []
    for length in (8 * K, 32 * K, 128 * K):
        some = [row_of(records("kvpress_beside")[-1], length, what) for what in BESIDE]
        rows.append(
            [
                f"{length:,}",
                " / ".join(f"{r['prefill_tps']:,.0f}" for r in some),
                " / ".join(f"{r['first_token_s']:.2f}" for r in some) + " s",
                " / ".join(f"{r['decode_tps']:.0f}" for r in some),
                " / ".join(gigabytes(r["grew_bytes"]) for r in some) + " GB",
            ]
        )
    head = ("tokens", "reading, tokens/s", "first token", "decoding, tokens/s")
    return table((*head, "memory beside the weights"), rows)


BESIDE = ("pot", "stock", "SnapKVPress")


@block
def benchmarks_known_said() -> list[str]:
    from infinipot.eval import scores
    from infinipot.eval.stats import paired_difference

    rows = [r for r in records("longbench") if r["model"] == LARGER]
    by_method = scores.by_label(rows)
    gap, interval = paired_difference(by_method["infinipot"], by_method["relevance"])
    assert interval is not None
    count = sum(map(len, by_method["full"].values()))
    return [
        f"LongBench: {count} rows. `relevance` less the default: {gap:+.1f} ({interval[0]:+.1f} to "
        f"{interval[1]:+.1f}, by row)."
    ]


ENGINE: Record = {"tensor_parallel": 1, "spread": False, "weights": None}
"""Arguments of `engine_speed.py`, as they are left out."""


def engine(shape: str, ranks: int = 1, spread: bool = False, weights: str | None = None) -> Record:
    """The newest record of `engine_speed.py` for a shape, on so many ranks."""
    how = {"shape": shape, "tensor_parallel": ranks, "spread": spread, "weights": weights}
    for record in reversed(records("engine_speed")):
        args = {**ENGINE, **record["arguments"]}
        if {name: args[name] for name in how} == how:
            return record
    raise LookupError(f"no record of {how}")


SEVERAL = (
    ("8B shape, one H200", "llama-8b-shape", 1, False),
    ("8B shape, `--tensor-parallel 2`", "llama-8b-shape", 2, False),
    ("70B shape, `--tensor-parallel 2`", "llama-70b-shape", 2, False),
    ("70B shape, `--spread`", "llama-70b-shape", 1, True),
)


@block
def several_gpus() -> list[str]:
    rows = []
    for name, *how in SEVERAL:
        record = engine(*how)
        read = record["reading_tps"]
        length = max((n for n in read if int(n) <= 128 * K), key=int)
        together = record["answering_tps"]
        rows.append(
            [
                name,
                f"{read[length][-1]:,} tokens/s ({int(length):,} tokens)",
                f"{together['1']} tokens/s",
                f"{together['8']:,} tokens/s",
                f"{gigabytes(record['peak_bytes'][length])} GB",
            ]
        )
    return table(("", "reading", "decoding", "8 answers together", "peak of the first GPU"), rows)


@block
def ranks_beside_one() -> list[str]:
    rows = []
    for record in records("tensor_parallel"):
        args = record["arguments"]
        texts = len(record["rows"])
        where = record["machine"]["gpu"] or "CPU"
        rows.append(
            [
                f"{args['model']}, {args['dtype']}, {where}",
                f"{texts} of {args['tokens']:,} tokens, pot {args['pot_size']:,}",
                f"{100 * record['survivors']:.1f} %",
                f"{record['equal_answers']} of {texts}",
            ]
        )
    return table(("model", "texts", "equal survivors", "equal first 32 tokens"), rows)


@block
def serving_on_two() -> list[str]:
    return [
        f"{r['clients']} client{'s' * (r['clients'] > 1)}: first token after "
        f"{r['turns'][0]['ttft_s']['median']:.2f} s (median), "
        f"{r['turns'][1]['client_tps']:.0f} tokens/s each in the second turn, both turns in {r['seconds']:.1f} s."
        for r in records("serving_tensor_parallel")
    ]


@block
def engine_speed() -> list[str]:
    record = engine("llama-8b-shape")
    rows = [
        [
            f"reading {int(length):,} tokens, in a session of a warm process",
            f"{speeds[-1]:,} tokens/s",
        ]
        for length, speeds in record["reading_tps"].items()
    ]
    rows += [
        [f"decoding, {count} together", f"{speed:,} tokens/s"]
        for count, speed in record["answering_tps"].items()
    ]
    rows.append(["memory of a pot", f"{record['pot_bytes'] / 1e6:.0f} MB"])
    rows.append(
        ["peak, the weights included", f"{gigabytes(max(record['peak_bytes'].values()))} GB"]
    )
    parts = ", ".join(f"{name} {100 * share:.1f} %" for name, share in record["shares"].items())
    total = 100 * sum(record["shares"].values())
    rows.append(["of the kernels' time while reading", f"{total:.1f} %: {parts}"])
    return table(("8B Llama shape, default sizes", "one H200"), rows)


@block
def gpu_int4() -> list[str]:
    record = engine("llama-8b-shape", weights="int4")
    rows = [
        [f"reading {int(length):,} tokens", f"{speeds[-1]:,} tokens/s"]
        for length, speeds in record["reading_tps"].items()
    ]
    rows += [
        ["decoding", f"{record['answering_tps']['1']} tokens/s"],
        ["weights", f"{gigabytes(record['weight_bytes'])} GB"],
        ["peak of all tensors", f"{gigabytes(max(record['peak_bytes'].values()))} GB"],
        ["peak, as torch reserves it", f"{gigabytes(record['reserved_peak_bytes'])} GB"],
    ]
    head = (
        "8B Llama shape, `--weights int4`",
        f"at most {record['arguments']['memory']} of an H200",
    )
    return table(head, rows)


@block
def gpu_eight_bit_pots() -> list[str]:
    rows = []
    for record in records("engine_speed_pot_dtype"):
        reading = record["reading_tps"]
        rows.append(
            [
                record["arguments"]["pot_dtype"] or "bfloat16",
                *(f"{reading[length][-1]:,}" for length in ("8192", "131072")),
                *(f"{record['answering_tps'][count]:,}" for count in ("1", "8", "64")),
                f"{record['pot_bytes'] / 1e6:.0f} MB",
            ]
        )
    head = (
        *("`pot_dtype`", "reading 8,192 tokens", "131,072"),
        *("answering, 1", "8 together", "64 together", "a pot"),
    )
    return table(head, rows)


@block
def serving_weights() -> list[str]:
    return serving_table("serving_weights")


DEFAULT_CHUNK = 2048
"""Tokens of a chunk on a GPU."""
Scores = dict[tuple[str, int], dict[str, list[float]]]
"""Scores by task, of a kind of weights and a length of chunks."""


def longbench_in_groups() -> Scores:
    scores: Scores = {}
    for row in records("longbench_weights") + records("longbench_chunks"):
        place = (row["model"].split(", ")[1], row.get("chunk_tokens", DEFAULT_CHUNK))
        scores.setdefault(place, {}).setdefault(row["task"], []).append(row["score"])
    return scores


@block
def quality_in_groups() -> list[str]:
    """Perplexity and LongBench of one model with weights of four kinds, and the changes."""
    losses: dict[str, dict[str, float]] = {
        kind: {} for kind in ("bfloat16", "float32", "int8", "int4")
    }
    for row in records("perplexity_weights"):
        kind = row["model"].split(", ")[1]
        losses[kind][f"{row['text']} {row['method']}"] = row["loss"]
    scores = longbench_in_groups()
    chunks = sorted({chunk for _, chunk in scores})
    rows = []
    for kind, some in losses.items():
        changes = [100 * (math.exp(some[what] - losses["bfloat16"][what]) - 1) for what in some]
        change = "" if kind == "bfloat16" else f"{min(changes):+.2f} to {max(changes):+.2f} %"
        means = [
            f"{statistics.mean(map(statistics.mean, scores[kind, chunk].values())):.1f}"
            if (kind, chunk) in scores
            else ""
            for chunk in chunks
        ]
        rows.append([kind, change, *means])
    head = ("weights", "perplexity", *(f"LongBench, chunks of {chunk:,}" for chunk in chunks))
    return table(head, rows)


@block
def quality_in_groups_texts() -> list[str]:
    losses = records("perplexity_weights")
    pot = next(r["options"]["pot_size"] for r in losses if r["options"])
    asked = sum(map(len, longbench_in_groups()["bfloat16", DEFAULT_CHUNK].values()))
    return [
        f"Perplexity of the first {losses[0]['tokens']:,} tokens of {len({r['text'] for r in losses})} novels, with full context and through "
        f"a pot of {pot:,}: the lowest and the highest change. LongBench, {asked} rows, through that pot: the mean of the tasks."
    ]


PRODUCTS = ("4096x4096", "1024x4096", "14336x4096", "4096x14336")
PRODUCT_DEFAULTS = {"MOST_OUTPUTS": 8, "ROW_PROGRAMS": 1056, "ROW_WARPS": 4}


def product(shape: str, rows: int, what: str) -> str:
    """Microseconds of a product with weights in four bits, with the constants as they are."""
    for record in records("gpu_weight_kernels"):
        for one in record["products"]:
            same = all(one.get(name, value) == value for name, value in PRODUCT_DEFAULTS.items())
            if (one["shape"], one["rows"]) == (shape, rows) and same and what in one:
                return f"{one[what]:.1f}"
    return ""


@block
def gpu_products() -> list[str]:
    rows = []
    for shape in PRODUCTS:
        cells = [
            " / ".join(filter(None, (product(shape, count, what) for what in WAYS)))
            for count in (1, 8, 16, 32, 64, 1024)
        ]
        rows.append([shape, *cells])
    return table(("weight", "1 row", *(f"{n:,} rows" for n in (8, 16, 32, 64, 1024))), rows)


WAYS = ("kernel", "unpacked", "bfloat16")


@block
def sessions_on_a_gpu() -> list[str]:
    many = sessions(on_gpu=True)
    quarters = [f"{x / 1e6:,.0f}" for x in many["rss_bytes_by_quarter"]]
    first, last = (f"{x / 1e6:.0f}" for x in many["device_bytes_first_last"])
    return [
        f"{many['sessions']:,} conversations one after another with a tiny model, on the same GPU: memory of the "
        f"GPU {first} MB after a quarter and {last} MB at the end, resident memory {' / '.join(quarters)} MB by "
        f"quarters, open files {many['files_first_last'][0]} and {many['files_first_last'][1]}."
    ]


def sessions(on_gpu: bool) -> Record:
    """The newest record of `many_sessions.py`."""
    some = [r for r in records("many_sessions") if bool(r["machine"]["gpu"]) is on_gpu]
    return some[-1]


@block
def speed_small_shape() -> list[str]:
    document = bench(SMALL_SHAPE)
    both = [row_of(document, 32 * K, what) for what in ("pot", "stock")]
    row = [
        f"{32 * K:,}",
        " / ".join(f"{r['prefill_tps']:,.0f}" for r in both),
        " / ".join(f"{r['decode_tps']:.0f}" for r in both),
        " / ".join(f"{r['batch_tps']:,.0f}" for r in both),
        " / ".join(gigabytes(r["peak_bytes"], 2) for r in both) + " GB",
    ]
    head = ("tokens; pot / stock", "reading, tokens/s", "decoding", "8 together")
    return table((*head, "peak, one answer"), [row])


@block
def serving() -> list[str]:
    return serving_table("serving")


def serving_table(name: str) -> list[str]:
    rows = []
    for r in records(name):
        first, second = r["turns"]
        rows.append(
            [
                str(r["clients"]),
                f"{first['ttft_s']['median']:.2f} / {first['ttft_s']['p99']:.2f} s",
                f"{second['ttft_s']['median']:.2f} / {second['ttft_s']['p99']:.2f} s",
                f"{1e3 * first['inter_token_s']['median']:.1f} / {1e3 * first['inter_token_s']['p99']:.0f} ms",
                f"{second['together_tps']:.0f} tokens/s",
                f"{r['seconds']:.1f} s",
            ]
        )
    head = ("clients", "first token, median / p99", "second turn, median / p99")
    more = ("between tokens, first turn", "second turn, all together", "both turns")
    return table((*head, *more), rows)


@block
def serving_upload() -> list[str]:
    """Answers without and beside the upload of a long text."""
    rows = []
    for r in records("serving_upload"):
        words = r["arguments"].get("upload_words")
        between = [turn["inter_token_s"] for turn in r["turns"]]
        rows.append(
            [
                f"{words:,} words are uploaded" if words else "nothing else",
                " / ".join(f"{1e3 * x['median']:.1f}" for x in between) + " ms",
                " / ".join(f"{1e3 * x['p99']:.1f}" for x in between) + " ms",
                " / ".join(f"{turn['client_tps']:.0f}" for turn in r["turns"]),
            ]
        )
    head = ("beside the answers", "between tokens, median of three turns", "99th percentile")
    return table((*head, "tokens/s"), rows)


@block
def serving_said() -> list[str]:
    some = records("serving")
    failed = sum(len(r["errors"]) for r in some)
    foreign = sum(r["cross_talk"]["foreign_codes"] for r in some)
    return [f"Failed requests: {failed}. Answers that held another client's code: {foreign}."]


@block
def speed_cpu() -> list[str]:
    rows = []
    for length in (K, 8 * K, 16 * K, 32 * K):
        document = bench("smollm2", length)
        pot, stock = (row_of(document, length, what) for what in ("pot", "stock"))
        rows.append(
            [
                f"{length:,}",
                f"{pot['prefill_tps']:.0f} / {stock['prefill_tps']:.0f} tokens/s",
                f"{pot['prefill_tps'] / stock['prefill_tps']:.2f}",
                f"{pot['decode_tps']:.1f} / {stock['decode_tps']:.1f} tokens/s",
                f"{pot['decode_tps'] / stock['decode_tps']:.2f}",
                f"{gigabytes(pot['peak_bytes'], 2)} / {gigabytes(stock['peak_bytes'], 2)} GB",
            ]
        )
    head = ("tokens", "reading, pot / stock", "ratio", "decoding, pot / stock", "ratio")
    return table((*head, "peak of the process, pot / stock"), rows)


@block
def novelty_cost() -> list[str]:
    rows = [
        [
            r["model"].removesuffix(".gguf"),
            f"{r['tokens']:,}",
            f"{r['ratio']:.2f}",
            ", ".join(f"{b / a:.2f}" for a, b in r["rounds_s"]),
        ]
        for r in records("novelty_cost")[-2:]
    ]
    head = ("model", "tokens", "time with novelty over time without", "rounds")
    return table(head, rows)


@block
def memory_flat() -> list[str]:
    last = records("flat_memory")[-1]
    rows = [
        [
            f"{r['tokens']:,}",
            str(r["distillations"]),
            f"{r['peak_rss_bytes'] / 2**20:,.0f} MiB",
            f"{r['reading_peak_rss_bytes'] / 2**20:,.0f} MiB",
        ]
        for r in last["rows"]
    ]
    head = ("tokens", "distillations", "peak of the process", "peak since reading began")
    return table(head, rows)


@block
def small_machine() -> list[str]:
    (r,) = records("small_machine")
    pot = r["pot"]
    rows = [
        [
            f"pot of {r['pot_size']}, distilled to {r['distill_to']}",
            f"{pot['tokens']:,} ({pot['distillations']} distillations)",
            f"{pot['read_tps']:.0f} tokens/s",
            f"{pot['answer_tps']:.0f} tokens/s",
            f"{pot['peak_rss_bytes'] / 2**20:.0f} MiB",
            f"{pot['pot_bytes'] / 1e6:.0f} MB",
        ],
        [
            "stock transformers",
            f"reads {r['stock']['reads']:,}, dies at {r['stock']['dies']:,}",
            "",
            "",
            "",
            f"{pot['full_cache_bytes'] / 1e6:,.0f} MB for the same text",
        ],
    ]
    head = ("", "tokens", "reading", "answering", "peak, libraries included", "cache")
    return table(head, rows)


FILES = {
    "qwen2.5-0.5b.gguf": "Qwen2.5-0.5B",
    "qwen2.5-1.5b.gguf": "Qwen2.5-1.5B",
    "smollm2": "SmolLM2-135M",
}
"""Names of models by their files."""


@block
def quantised_weights() -> list[str]:
    names = {"plain": "float32"}
    rows = [
        [
            FILES[one["model"]],
            names.get(name, name),
            f"{r['weights_bytes'] / 1e6:,.0f} MB",
            f"{r['peak_ratio']:.2f}",
            f"{r['reading_ratio']:.2f}",
            f"{r['answering_ratio']:.2f}",
            f"{r['perplexity_ratio']:.4f}",
            f"{100 * (math.exp(r['nats'] - r['float32_nats']) - 1):+.4f} %",
        ]
        for one in {r["model"]: r for r in records("quantised_weights")}.values()
        for name, r in one["rows"].items()
    ]
    head = ("model", "weights", "bytes", "peak while loading / what stays", "reading", "answering")
    return table((*head, "perplexity", "of it by rounded activations"), rows)


@block
def small_machine_weights() -> list[str]:
    rows = [
        [
            r["weights"],
            f"{r['pot_size']:,} in {r['pot_dtype'] or r['dtype']}",
            f"{pot['tokens']:,} ({pot['distillations']} distillations)",
            f"{pot['read_tps']:.0f} tokens/s",
            f"{pot['answer_tps']:.1f} tokens/s",
            f"{pot['peak_rss_bytes'] / 1e6:,.0f} MB",
            f"{pot['pot_bytes'] / 1e6:.0f} MB",
        ]
        for r in records("small_machine_weights")
        if "pot_dtype" in r  # older ones are of other forms of the weights
        for pot in (r["pot"],)
    ]
    head = ("weights", "pot", "tokens", "reading", "answering", "peak, libraries included", "cache")
    return table(head, rows)


@block
def what_fits() -> list[str]:
    """What `infinipot plan` proposes for some memories, on a CPU in bfloat16."""
    import torch

    from infinipot import PotConfig
    from infinipot.cli.plan import POT_SIZES, best
    from infinipot.server.sizes import config_from, sizes_of

    shapes = ("qwen2.5-0.5b-shape", "qwen2.5-1.5b-shape", "llama-8b-shape")
    found = [
        sizes_of(config_from(shape), PotConfig(), torch.bfloat16, POT_SIZES, torch.device("cpu"))
        for shape in shapes
    ]
    rows = []
    for memory in (2, 4, 8, 16):
        cells = [best(sizes, memory * 10**9) for sizes in found]
        texts = [f"`{cell[0]}`, pot of {cell[1]:,}" if cell else "" for cell in cells]
        rows.append([f"{memory} GB", *texts])
    return table(("memory", *(f"`{shape}`" for shape in shapes)), rows)


@block
def beside_llamacpp() -> list[str]:
    last = {
        (one["model"], tokens): [r for r in one["rows"] if r["tokens"] == tokens]
        for one in records("beside_llamacpp")
        for tokens in {r["tokens"] for r in one.get("rows", ())}
        if tokens >= K
    }
    rows = [
        [
            FILES[model],
            f"{tokens:,}",
            r["who"],
            f"{r['read_tps']:.1f} tokens/s",
            f"{r['answer_tps']:.1f} tokens/s",
            f"{r['peak_bytes'] / 1e6:,.0f} MB" if "peak_bytes" in r else "",
        ]
        for (model, tokens), some in sorted(last.items())
        for r in some
    ]
    head = ("model", "tokens", "by", "reading", "answering", "peak of the process")
    return table(head, rows)


@block
def past_window() -> list[str]:
    last = [x for x in records("beside_llamacpp") if "past_window" in x][-1]
    rows = [[r["who"], r["longer_text"], str(r["answered"])] for r in last["past_window"]]
    longer = f"a text of {last['longer']} tokens"
    answer = f"tokens of {last['asked']} that are asked for behind {last['near']}"
    return table((f"window or pot of {last['window']}", longer, answer), rows)


@block
def weight_kernels() -> list[str]:
    last = [r for r in records("weight_kernels")[-1]["rows"] if r["shape"] == "Qwen2.5-0.5B, up"]
    kernels = {r["kernel"]: [one for one in last if one["kernel"] == r["kernel"]] for r in last}
    rows = [
        [f"`{name}`" if name.startswith("_") else name]
        + [f"{r['ms']:.2f} ms" for r in some]
        + [f"{100 * some[-1]['error']:.1f} %"]
        for name, some in kernels.items()
    ]
    head = ["product", *(f"{r['rows']} rows" for r in kernels["float32"]), "largest error"]
    return table(head, rows)


@block
def server_on_a_cpu() -> list[str]:
    load = records("server_load")[-1]
    clients = [
        round(x["decode_tps"]["8"] / x["decode_tps"]["1"], 1) for x in records("server_load")
    ]
    engine = {
        (r["model"], r["dtype"]): r["tps"]["8, novelty 0.25"] / r["tps"]["1, novelty 0.25"]
        for r in records("answers_together")
    }
    spoiled = records("server_input")[-1]
    many = sessions(on_gpu=False)
    quarters = [f"{x / 1e6:.1f}" for x in many["rss_bytes_by_quarter"]]
    first, last = (x / 1e6 for x in load["rss_bytes_first_last"])
    before, after = (x / 1e6 for x in spoiled["rss_bytes"])
    return [
        f"- **Load**: {load['clients']} clients for {load['seconds']:.0f} s, {load['conversations']:,} "
        f"conversations, {load['answers']:,} answers, {load['left']:,} clients that left in the middle: "
        f"{load['errors']} errors, {load['cross-talk']} answers that belonged to somebody else, at most "
        f"{load['peak_entries']} entries in a pot of {load['pot_size']}. Resident memory {first:.1f} to {last:.1f} MB.",
        f"- **Eight clients' answers together** have {', '.join(map(str, clients[1:]))} times the tokens/s "
        f"of one client's (the last: {load['decode_tps']['1']:.0f} and {load['decode_tps']['8']:,.0f} tokens/s); "
        f"the engine alone {engine['tiny', 'float32']:.1f} times, with SmolLM2 {engine['smollm2', 'bfloat16']:.1f} times in "
        f"bfloat16, which the processor is faster with, and {engine['smollm2', 'float32']:.1f} in float32.",
        f"- **One conversation after another**: {many['sessions']:,} in {many['seconds']:,.0f} s, every fourth longer than its pot of "
        f"{many['pot_size']} (random weights). Resident memory by quarters of the run {', '.join(quarters)} MB; open files "
        f"{' and '.join(map(str, many['files_first_last']))}.",
        f"- **Spoiled requests**: {sum(spoiled['spoiled'].values()):,} by mutation, and those that schemathesis "
        f"makes of the description: {spoiled['not_allowed']} answers that are not documented. Resident memory "
        f"{before:.0f} to {after:.0f} MB.",
    ]


@block
def eight_bits() -> list[str]:
    (r,) = records("pot_options")
    rows = [
        [name, f"{x['loss']:.3f}", str(x["distillations"]), f"{x['relative_bytes']:.2f}"]
        for name, x in r["rows"].items()
        if name in ("default", "distil to 1/4", "int8", "fp8", "streaming", "h2o", "full")
    ]
    return table(("option", "loss, nats a token", "distillations", "bytes, relative"), rows)


# ---------------------------------------------------------------- what a pot keeps, and positions


def kept(what: str) -> list[Record]:
    return [r for r in records("survivors") if r["what"] == what]


@block
def heads_own_choice() -> list[str]:
    rows = [
        [
            r["gqa"],
            str(r["pots"]),
            f"{100 * r['share']:.0f} %",
            f"{100 * r['least_layer']:.0f} % to {100 * r['most_layer']:.0f} %",
        ]
        for r in kept("heads")
    ]
    head = ("`gqa`", "full pots", "share of its own choice that a query head keeps", "by layer")
    return table(head, rows)


@block
def cycles() -> list[str]:
    (r,) = kept("cycles")
    rows = [
        [
            str(row["cycle"]),
            f"{row['read']:,}",
            f"{100 * row['overlap']:.0f} %",
            f"{100 * row['novelty_cap']:.0f} %",
            f"{100 * row['novelty_cap_nuc']:.0f} %",
        ]
        for row in r["rows"]
    ]
    head = ("distillation", "tokens read", "CaP's survivors that CaP with NuC keeps")
    return table((*head, "most novelty that CaP holds", "that CaP with NuC holds"), rows)


@block
def chunks() -> list[str]:
    rows = [
        [
            f"{r['tokens']:,}",
            str(r["machine"]["threads"]),
            f"{r['heads_that_differ']} of {r['heads']}",
            f"{100 * (1 - r['same_survivors']):.1f} %",
        ]
        for r in kept("chunks")
    ]
    head = ("tokens", "threads", "KV heads whose survivors differ", "survivors that differ")
    return table(head, rows)


@block
def beyond_the_window() -> list[str]:
    some = [r for r in records("perplexity") if r["model"] == "smollm2"]
    every = some[0]["every"]
    places = [f"{n * every:,} on" for n in range(len(some[0]["losses"]))]
    names = {False: "CR-RoPE", True: "positions grow"}
    rows = [
        [
            names["context_reset=false" in r["method"]],
            *[f"{math.exp(loss):.1f}" for loss in r["losses"]],
        ]
        for r in some
    ]
    return table(("perplexity from token", *places), rows)


# ---------------------------------------------------------------- README, and results in short


@block
def at_a_glance() -> list[str]:
    """The rows of `measured` that README shows, without commands."""
    rows = measured_rows()
    return table(("what", "figure"), [rows[number][:2] for number in AT_A_GLANCE])


AT_A_GLANCE = (0, 2, 3, 5, 6, 7, 11)


@block
def measured() -> list[str]:
    return table(("what", "figure", "command"), measured_rows())


def measured_rows() -> list[list[str]]:
    flat = records("flat_memory")[-1]
    growth = flat["rows"][1]["peak_rss_bytes"] / flat["rows"][0]["peak_rss_bytes"]
    return [
        [
            "a pass key in 131,072 tokens of essays, Qwen2.5-Coder-0.5B, pot 4,096, held out",
            f"question known: found {found_text(needles(DEFAULT, (1, 2)), 128 * K)} times; unknown, "
            f"`--preset facts`: {found_text(needles(FACTS, (1,)), 128 * K)}",
            "`infinipot needle`",
        ],
        [
            "the same in 1,048,576 tokens",
            f"question known: {found_text(needles(DEFAULT, (1, 2)), K * K)}; unknown: "
            f"{found_text(needles(FACTS, (1,)), K * K)}",
            "`infinipot needle`",
        ],
        [
            "eleven RULER tasks at 16,384 tokens, the same model and pot, question known, held out",
            f"{ruler_mean(DEFAULT) / ruler_mean('full'):.2f} of full context's score",
            "`infinipot eval lm`",
        ],
        later_row(),
        [
            "peak memory of the process over 131,138 tokens, relative to 16,444",
            f"{growth:.4f}",
            "`python benchmarks/flat_memory.py`",
        ],
        demo_row(),
        *measured_speed(),
    ]


def demo_row() -> list[str]:
    demo = records("demo")[-1]
    rows = demo["rows"]
    said = []
    for name in ("known", "unknown", "truncated", "page"):
        mean = math.exp(sum(math.log(row[f"{name}_likely"]) for row in rows) / len(rows))
        said.append(f"{100 * mean:.0f} % ({sum(row[name] for row in rows)} of {len(rows)})")
    known, unknown, truncated, page = said
    return [
        f"questions at even places of {demo['tokens']:,} tokens of Python's reference, SmolLM2, pot {demo['pot_size']:,}: how likely it finds the text's own words (right answers)",
        f"question known {known}, unknown {unknown}; truncated to the pot's size {truncated}; full context, of the page alone {page}",
        "`make demo`",
    ]


def measured_speed() -> list[list[str]]:
    large = engine("llama-8b-shape")
    together = {count: f"{speed:,}" for count, speed in large["answering_tps"].items()}
    pot, stock, press = (row_of(records("kvpress_beside")[-1], 128 * K, what) for what in BESIDE)
    clients = {r["clients"]: r for r in records("serving")}
    one, many = clients[1], clients[32]
    cpu = {
        (n, what): row_of(bench("smollm2", n), n, what)
        for n in (K, 8 * K, 16 * K, 32 * K)
        for what in ("pot", "stock")
    }

    def ratio(length: int, name: str) -> str:
        return f"{cpu[length, 'pot'][name] / cpu[length, 'stock'][name]:.2f}"

    small = records("small_machine")[-1]
    alone = [f"{turn['together_tps']:.0f}" for turn in one["turns"]]
    bounded = engine("llama-8b-shape", weights="int4")
    return [
        [
            "8B Llama shape, pot 4,096, default sizes, one H200",
            f"reading {large['reading_tps']['8192'][-1]:,} tokens/s at 8K, {large['reading_tps']['32768'][-1]:,} at 32K; "
            f"decoding {together['1']} tokens/s, 64 answers together {together['64']}",
            "`python benchmarks/engine_speed.py`",
        ],
        [
            "the 8B shape with `--weights int4` in 8 GB of an H200, pot 4,096",
            f"reading 131,072 tokens {bounded['reading_tps']['131072'][-1]:,} tokens/s, decoding "
            f"{bounded['answering_tps']['1']}; peak {gigabytes(bounded['reserved_peak_bytes'])} GB",
            "`python benchmarks/engine_speed.py --weights int4 --memory 8GB`",
        ],
        [
            "the 8B shape served at default sizes, one H200, prompts of 4,480 tokens",
            f"one client: first token after {one['turns'][0]['ttft_s']['median']:.2f} s, {min(alone)} to {max(alone)} tokens/s; "
            f"32 clients at once: first token after {many['turns'][0]['ttft_s']['median']:.1f} s (median), of a second turn after "
            f"{many['turns'][1]['ttft_s']['median']:.1f} s",
            "`python benchmarks/serving.py`",
        ],
        [
            "the 8B shape at 131,072 tokens, 2,048 survivors (stock transformers; kvpress)",
            f"reading {pot['prefill_tps']:,.0f} tokens/s ({stock['prefill_tps']:,.0f}; {press['prefill_tps']:,.0f}); decoding "
            f"{pot['decode_tps']:.0f} ({stock['decode_tps']:.0f}; {press['decode_tps']:.0f}); memory beside the weights "
            f"{gigabytes(pot['grew_bytes'])} GB ({gigabytes(stock['grew_bytes'])}; {gigabytes(press['grew_bytes'])})",
            "`python benchmarks/kvpress_beside.py`",
        ],
        [
            "Qwen2.5-0.5B shape, pot 4,096, default sizes, one H200, relative to stock transformers",
            small_beside_stock(),
            "`infinipot bench qwen2.5-0.5b-shape --compare stock`",
        ],
        [
            "SmolLM2 on two cores of an AMD EPYC, pot 2,048, relative to stock transformers",
            f"reading 1K {ratio(K, 'prefill_tps')}, 8K {ratio(8 * K, 'prefill_tps')} and 32K "
            f"{ratio(32 * K, 'prefill_tps')} times as fast; decoding behind 1K {ratio(K, 'decode_tps')}, behind 16K "
            f"{ratio(16 * K, 'decode_tps')}; peak at 32K {gigabytes(cpu[32 * K, 'pot']['peak_bytes'], 2)} GB "
            f"({gigabytes(cpu[32 * K, 'stock']['peak_bytes'], 2)})",
            "`infinipot bench smollm2 --compare stock`",
        ],
        [
            "131,138 tokens on one core in 700 MiB, SmolLM2, pot 512",
            f"{small['pot']['read_tps']:.0f} tokens/s; stock transformers dies at {small['stock']['dies']:,}",
            "`python benchmarks/small_machine.py`",
        ],
        [
            "131,136 tokens on two cores, Qwen2.5-Coder-1.5B from its GGUF file: peak of the process",
            weights_beside_pots(),
            "`python benchmarks/small_machine.py --weights int4`",
        ],
    ]


def weights_beside_pots() -> str:
    """The peak of a process with quantised weights, and how fast it reads."""
    return "; ".join(
        f"`{r['weights']}`, pot {r['pot_size']:,}: {gigabytes(r['pot']['peak_rss_bytes'], 2)} GB, "
        f"{r['pot']['read_tps']:.0f} tokens/s"
        for r in records("small_machine_weights")
        if "pot_dtype" in r
    )


def small_beside_stock() -> str:
    document = bench(SMALL_SHAPE)
    reading, decoding = (
        row_of(document, 32 * K)[name] / row_of(document, 32 * K, "stock")[name]
        for name in ("prefill_tps", "decode_tps")
    )
    return f"reading 32K {reading:.2f} times as fast; decoding {decoding:.1f}"
