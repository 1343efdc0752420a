"""What is measured of a model that reads into a pot: reading, answering, and what a distillation is made of."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from infinipot import distill
from infinipot.answering import Turn, together
from infinipot.bench.meter import clock, median_s, peak, settle
from infinipot.host import Host
from infinipot.observe import observe, observe_catalyst, reserve
from infinipot.options import PotConfig
from infinipot.policies import POLICIES
from infinipot.session import Session

CATALYST = 32
"""Tokens of the question that is known while reading."""
PROMPT = 8
"""Tokens read before an answer begins."""
STARTS = 2
"""Tokens of an answer that come before the pace is taken."""


def greedy(logits: Tensor) -> int:
    return int(logits.argmax())


def pace(times: list[float], rows: int) -> float:
    """Tokens a second of all rows together, given the moments at which a token of each was there."""
    return rows * (len(times) - 1 - STARTS) / (times[-1] - times[STARTS])


def read(host: Host, config: PotConfig, ids: list[int]) -> tuple[Session, dict[str, float]]:
    """A new session that has read ids, with the first ones of them for a question; reading speed, seconds to the first token."""
    session = Session(host, None, config)
    started = clock()
    session.append(ids, question=ids[:CATALYST])
    read_s = clock() - started
    greedy(session.logits)
    return session, {"prefill_tps": len(ids) / read_s, "first_token_s": clock() - started}


def answer(session: Session, rows: int, tokens: int) -> float:
    """Tokens a second of `rows` answers, decoded together, to questions that the pot did not know before."""
    readers = [session.fork()._reader for _ in range(rows)]
    options: dict[str, Any] = {"max_tokens": tokens, "pick": greedy, "stop_ids": set()}
    turns = [Turn(reader, [1 + number] * PROMPT, catalyst=reader.usual, **options) for number, reader in enumerate(readers)]
    return pace([clock() for _ in together(turns)], rows)


def measured(host: Host, config: PotConfig, ids: list[int], batch: int, tokens: int) -> dict[str, Any]:
    """One row of the table: a text read, then one answer, then `batch` together."""
    with peak(host.device) as whole:
        session, row = read(host, config, ids)
        row["decode_tps"] = answer(session, 1, tokens)
    several: dict[str, Any] = {"batch_tps": None, "batch_peak_bytes": None}
    if batch > 1:
        with peak(host.device) as most:
            several["batch_tps"] = answer(session, batch, tokens)
        several["batch_peak_bytes"] = most.bytes
    stats = session.stats
    kept = {"kv_bytes": stats.pot_bytes, "distillations": stats.distillations, "peak_entries": stats.peak_entries}
    return {**row, "peak_bytes": whole.bytes, "grew_bytes": whole.grew, **several, **kept}


def fill(session: Session, random: torch.Generator) -> None:
    """Read on until the pot is full: the next token would make it distil."""
    reader = session._reader
    count = int(session.pot.room) - reserve(session.config, reader.usual)
    if count > 0:
        catalyst: Tensor | None = reader.usual
        more = torch.randint(session.host.vocabulary, (count,), generator=random).tolist()
        reader.read(more, catalyst)


def stages(host: Host, config: PotConfig, ids: list[int], prefill_tps: float) -> dict[str, Any]:
    """What the parts of reading cost, each timed by itself on a full pot, as shares of the time to read what lies between two distillations.

    catalyst_forward: reading the catalyst, looking at nothing. scores: CaP, the rest of that reading. compaction: a distillation that only
    takes the newest. selection: all else. novelty: NuC of the text. Pieces that a policy has not are left out.
    """
    needs = POLICIES[config.policy]().needs(config.novelty)
    session, _ = read(host, config, ids[: 2 * config.pot_size])
    fill(session, torch.Generator().manual_seed(1))
    pot, catalyst = session.pot, session._reader.usual
    simple = dataclasses.replace(config, policy="sliding_window", distill_to=config.survivors, catalyst=None)
    seconds: dict[str, float] = {}
    compaction = median_s(lambda twin: distill.distill(host, twin, simple, None), pot.copy)
    whole = median_s(lambda twin: distill.distill(host, twin, config, catalyst), pot.copy)
    observing = 0.0
    if catalyst is not None and "catalyst" in needs:
        nothing = torch.zeros(0)
        forward = median_s(lambda _: observe(host, pot, catalyst, lambda query, key, scoring: nothing))
        observing = median_s(lambda _: observe_catalyst(host, pot, config, catalyst))
        seconds |= {"catalyst_forward": forward, "scores": observing - forward}
    seconds |= {"selection": whole - observing - compaction, "compaction": compaction}
    between = config.pot_size - config.survivors - reserve(config, catalyst)
    if "novelty" in needs and pot.hidden is not None:
        chunk = min(config.chunk_tokens, between)
        states = pot.hidden.expand(1, chunk, -1).contiguous()
        targets = torch.tensor([ids[:chunk]], device=host.device)
        seconds["novelty"] = median_s(lambda _: host.novelty(states, targets)) * between / chunk
    cycle = between / prefill_tps
    shares = {name: value / cycle for name, value in seconds.items()}
    return {"tokens_between": between, "cycle_s": cycle, "seconds": seconds, "shares": shares, "overhead": sum(shares.values())}


def plain(host: Host, config: PotConfig, ids: list[int]) -> dict[str, Any]:
    """The speed of the same loop without catalyst and novelty: the pot keeps the newest entries."""
    settle()
    simple = dataclasses.replace(config, policy="sliding_window", distill_to=config.survivors, catalyst=None)
    return {"prefill_tps": read(host, simple, ids)[1]["prefill_tps"]}
