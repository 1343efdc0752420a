"""Whether a model over several processes keeps and says what it does in one: the share of equal
survivors, and of answers whose first tokens are equal.

    python benchmarks/tensor_parallel.py MODEL TEXT [--count 2] [--texts 16] [--tokens 16384]
                                         [--dtype bfloat16] [--pot-size 4096]

MODEL: a folder or a Hub id. TEXT: a text file, of which consecutive parts are read. A question about
the text is known while reading. Needs a GPU for each process, or runs on the CPU.
"""

from __future__ import annotations

import argparse
import gzip
from pathlib import Path
from typing import Any

import torch
from machine import keep

from infinipot import PotConfig, Session, load
from infinipot.model.runner import ModelRunner

QUESTION = "Who speaks in this text, and what about?"
TOKENS = 32
"""Tokens of an answer that are compared."""


def parts(tokenizer: Any, path: Path, texts: int, tokens: int) -> list[str]:
    """Consecutive parts of a text."""
    data = path.read_bytes()
    if path.suffix == ".gz":
        data = gzip.decompress(data)
    ids = tokenizer(data.decode(), add_special_tokens=False).input_ids
    rows = [ids[start : start + tokens] for start in range(0, len(ids) - tokens, tokens)]
    return [tokenizer.decode(row) for row in rows[:texts]]


def read(runner: ModelRunner, tokenizer: Any, text: str, size: int) -> tuple[list[Any], list[int]]:
    """Places in the text of what is kept by layer, [K, C] each, and the first tokens of an answer."""
    session = Session(runner, tokenizer, PotConfig(pot_size=size))
    session.append(text, question=QUESTION)
    kept = [session.pot.described([layer])[0][0].cpu() for layer in session.pot.bounded]
    tokens = session.stream_ids(
        QUESTION, max_tokens=TOKENS, pick=lambda x: int(x.argmax()), stop_ids=set()
    )
    return kept, list(tokens)


def common(mine: list[Any], whole: list[Any]) -> float:
    """The share of the entries of this rank's heads that are kept in one process, too."""
    both = 0
    every = 0
    for own, other in zip(mine, whole, strict=True):
        for head, same in zip(own, other[: len(own)], strict=True):
            both += int(torch.isin(head, same).sum())
            every += len(head)
    return both / every


def equal(one: list[int], other: list[int]) -> int:
    """How many of the first tokens are equal."""
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    return count


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("text", type=Path)
    parser.add_argument("--count", type=int, default=2)
    parser.add_argument("--texts", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--pot-size", type=int, default=4096)
    parser.add_argument("--dtype", default="bfloat16")
    args = parser.parse_args()
    shared, tokenizer = load(args.model, dtype=args.dtype, tensor_parallel=args.count)
    alone, _ = load(args.model, dtype=args.dtype)
    runners = [ModelRunner(shared), ModelRunner(alone)]
    rows = []
    for text in parts(tokenizer, args.text, args.texts, args.tokens):
        (mine, said), (whole, told) = [
            read(runner, tokenizer, text, args.pot_size) for runner in runners
        ]
        row = {"survivors": round(common(mine, whole), 5), "equal_tokens": equal(said, told)}
        rows.append(row)
    record = {
        "arguments": {**vars(args), "model": Path(args.model).name, "text": args.text.name},
        "survivors": round(sum(row["survivors"] for row in rows) / len(rows), 5),
        "equal_answers": sum(row["equal_tokens"] == TOKENS for row in rows),
        "rows": rows,
    }
    keep("tensor_parallel", record)


if __name__ == "__main__":
    main()
