"""Measurements of a model with a pot: reading a text, and answering."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import Tensor

from infinipot.bench.measure import clock, peak, settle
from infinipot.config import PotConfig
from infinipot.engine.decode import Turn, together
from infinipot.model.runner import ModelRunner
from infinipot.session import Session

CATALYST = 32
"""Tokens of the question that the pot knows during reading."""
PROMPT = 8
"""Tokens of the prompt before an answer."""
STARTS = 4
"""Tokens of an answer that are not timed: CUDA graphs are recorded during these."""


def greedy(logits: Tensor) -> int:
    return int(logits.argmax())


def pace(times: list[float], rows: int) -> float:
    """Tokens per second of all rows together.

    times: for each step, the moment at which every row had its token.
    """
    return rows * (len(times) - 1 - STARTS) / (times[-1] - times[STARTS])


def read(host: ModelRunner, config: PotConfig, ids: list[int]) -> tuple[Session, dict[str, float]]:
    """A new session that has read the ids, its reading speed, and its time to the first token.

    The first ids of the text serve as the question.
    """
    session = Session(host, None, config)
    start = clock()
    session.append(ids, question=ids[:CATALYST])
    read_s = clock() - start
    greedy(session.logits)
    return session, {"prefill_tps": len(ids) / read_s, "first_token_s": clock() - start}


def answer(session: Session, rows: int, tokens: int) -> float:
    """Tokens per second of `rows` answers, decoded together. The pot did not know the questions."""
    readers = [session.fork()._reader for _ in range(rows)]
    options: dict[str, Any] = {"max_tokens": tokens, "pick": greedy, "stop_ids": set()}
    turns = [
        Turn(reader, [1 + number] * PROMPT, catalyst=reader.usual, **options)
        for number, reader in enumerate(readers)
    ]
    return pace([clock() for _ in together(turns)], rows)


def measured(
    host: ModelRunner, config: PotConfig, ids: list[int], batch: int, tokens: int
) -> dict[str, Any]:
    """One row of the table: reading, one answer, and `batch` answers together.

    The peak of memory is that of the command line: read the text, and answer into the same pot.
    The speed of answers is measured on copies of that pot.
    """
    options: dict[str, Any] = {"max_tokens": PROMPT, "pick": greedy, "stop_ids": set()}
    with peak(host.device) as whole:
        session, row = read(host, config, ids)
        for _ in session.stream_ids([1] * PROMPT, keep=True, **options):
            pass
    row["decode_tps"] = answer(session, 1, tokens)
    several: dict[str, Any] = {"batch_tps": None, "batch_peak_bytes": None}
    if batch > 1:
        with peak(host.device) as most:
            several["batch_tps"] = answer(session, batch, tokens)
        several["batch_peak_bytes"] = most.bytes
    stats = session.stats
    pot = {
        "kv_bytes": stats.pot_bytes,
        "distillations": stats.distillations,
        "peak_entries": stats.peak_entries,
    }
    return {**row, "peak_bytes": whole.bytes, "grew_bytes": whole.grew, **several, **pot}


def without(host: ModelRunner, config: PotConfig, ids: list[int]) -> dict[str, Any]:
    """The reading speed without novelty."""
    return speed(host, dataclasses.replace(config, novelty=0.0), ids)


def plain(host: ModelRunner, config: PotConfig, ids: list[int]) -> dict[str, Any]:
    """The reading speed without catalyst and novelty: the pot keeps the newest entries."""
    return speed(host, simple(config), ids)


def speed(host: ModelRunner, config: PotConfig, ids: list[int]) -> dict[str, Any]:
    settle()
    _, row = read(host, config, ids)
    return {"prefill_tps": row["prefill_tps"]}


def simple(config: PotConfig) -> PotConfig:
    """The same sizes, with a policy that needs no scores."""
    return dataclasses.replace(
        config, policy="sliding_window", distill_to=config.survivors, catalyst=None
    )
