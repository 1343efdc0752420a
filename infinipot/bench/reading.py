"""What is measured of a model that reads into a pot: reading and answering."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from infinipot.bench.measure import clock, peak, settle
from infinipot.config import PotConfig
from infinipot.engine.decode import together
from infinipot.engine.generation import Generation
from infinipot.engine.sampling import Sampler
from infinipot.model.runner import ModelRunner
from infinipot.sampling import Sampling
from infinipot.session import Session

CATALYST = 32
"""Tokens of the question that is known while reading."""
PROMPT = 8
"""Tokens read before an answer begins."""
STARTS = 4
"""Tokens of an answer that come before the pace is taken: what is recorded for a pot is recorded by
then."""


def greedy(logits: Tensor) -> int:
    return int(logits.argmax())


def pace(times: list[float], rows: int) -> float:
    """Tokens a second of all rows together, given the moments at which a token of each was there."""
    return rows * (len(times) - 1 - STARTS) / (times[-1] - times[STARTS])


def read(
    runner: ModelRunner, config: PotConfig, ids: list[int]
) -> tuple[Session, dict[str, float]]:
    """A new session that has read ids, with the first ones of them for a question; reading speed,
    seconds to the first token."""
    session = Session(runner, None, config)
    started = clock()
    session.append(ids, question=ids[:CATALYST])
    read_s = clock() - started
    greedy(session.logits)
    return session, {"prefill_tps": len(ids) / read_s, "first_token_s": clock() - started}


def answer(session: Session, rows: int, tokens: int) -> float:
    """Tokens a second of `rows` answers, decoded together, to questions that the pot did not know
    before."""
    readers = [session.fork()._reader for _ in range(rows)]
    options: dict[str, Any] = {"max_tokens": tokens, "stop_ids": set()}
    generations = []
    for number, reader in enumerate(readers):
        pick = Sampler(Sampling(temperature=0.0))  # as users' answers are picked
        options |= {"catalyst": reader.last_catalyst, "pick": pick}
        generations.append(Generation(reader, [1 + number] * PROMPT, **options))
    return pace([clock() for _ in together(generations)], rows)


def measured(
    runner: ModelRunner, config: PotConfig, ids: list[int], batch: int, tokens: int
) -> dict[str, Any]:
    """One row of the table: a text read and answered into the pot, as the command line does; then
    the pace of an answer, and of `batch` together, each from a copy of the pot that its question
    did not shape."""
    with peak(runner.device) as whole:
        session, row = read(runner, config, ids)
        for _ in session.stream_ids(
            [1] * PROMPT, max_tokens=PROMPT, pick=greedy, stop_ids=set(), keep=True
        ):
            pass
    row["decode_tps"] = answer(session, 1, tokens)
    several: dict[str, Any] = {"batch_tps": None, "batch_peak_bytes": None}
    if batch > 1:
        with peak(runner.device) as most:
            several["batch_tps"] = answer(session, batch, tokens)
        several["batch_peak_bytes"] = most.bytes
    stats = session.stats
    kept = {
        "kv_bytes": stats.pot_bytes,
        "distillations": stats.distillations,
        "peak_entries": stats.peak_entries,
    }
    return {**row, "peak_bytes": whole.bytes, "grew_bytes": whole.grew, **several, **kept}


def without(runner: ModelRunner, config: PotConfig, ids: list[int]) -> dict[str, Any]:
    """The speed of the same reading with novelty left out."""
    settle()
    return {"prefill_tps": read(runner, config.replace(novelty=0.0), ids)[1]["prefill_tps"]}


def plain(runner: ModelRunner, config: PotConfig, ids: list[int]) -> dict[str, Any]:
    """The speed of the same loop without catalyst and novelty: the pot keeps the newest entries."""
    settle()
    return {"prefill_tps": read(runner, simple(config), ids)[1]["prefill_tps"]}


def simple(config: PotConfig) -> PotConfig:
    """The same sizes with a policy that observes nothing."""
    return config.replace(policy="sliding_window", distill_to=config.mean_budget)
