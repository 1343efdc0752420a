"""Make a model's recordings before the server is ready."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from functools import partial

import torch
from transformers import PreTrainedTokenizerBase

from infinipot.cache.pot import Pot
from infinipot.config import PotConfig
from infinipot.engine.cuda_graphs import PART, TAIL, graph_cache
from infinipot.engine.graph_step import ROWS
from infinipot.engine.reader import NoRoom
from infinipot.model.runner import ModelRunner
from infinipot.server.settings import Settings
from infinipot.server.slices import GPU_CHUNK_TOKENS
from infinipot.session import Session

log = logging.getLogger("infinipot")
CATALYST = 32
"""Tokens of the questions by which trial texts are distilled. Other lengths use the same kernels."""
PARTS = [PART << power for power in range(GPU_CHUNK_TOKENS.bit_length() - PART.bit_length() + 1)]
"""Tokens of a slice: as many as others leave time for."""
ROUNDS = 3
"""A first round loads kernels, a second one records, a third one needs nothing more."""


def warm_up(runner: ModelRunner, tokenizer: PreTrainedTokenizerBase, settings: Settings) -> None:
    """Read trial texts, and make steps of all sizes for `max_sessions`, so that what follows finds
    its recordings. Does nothing where nothing is recorded."""
    graphs = graph_cache(runner)
    if runner.device.type != "cuda" or graphs.unrecordable or not bounded(settings.config):
        return
    started = time.perf_counter()
    try:
        record_all(runner, tokenizer, settings)
    except NoRoom:  # a pot too small for a trial; its recordings are made when they are needed
        return
    torch.cuda.synchronize(runner.device)
    log.info("recordings took %.1f s", time.perf_counter() - started)


def record_all(runner: ModelRunner, tokenizer: PreTrainedTokenizerBase, settings: Settings) -> None:
    """Use every recording often enough to make it. Raises NoRoom."""
    graphs = graph_cache(runner)
    for most in PARTS:
        pot = trial(runner, tokenizer, settings.config, most)
    for rows in range(PART, int(min(TAIL, pot.room)) + 1, PART):
        ids = torch.zeros(1, rows, dtype=torch.long, device=runner.device)
        repeat(pot, partial(graphs.chunk, pot, ids, None, watched=True))
    most = max(PART, settings.max_sessions)
    for rows in [rows for rows in ROWS if rows <= pot.room]:
        ids = torch.zeros(rows, 1, dtype=torch.long, device=runner.device)
        repeat(pot, partial(graphs.step, [pot], [rows], ids, watched=False))
        if rows >= most:
            break


def bounded(config: PotConfig) -> bool:
    """Whether pots are distilled while they are read."""
    return config.policy.bounded and config.prefill == "bounded"


def trial(
    runner: ModelRunner, tokenizer: PreTrainedTokenizerBase, config: PotConfig, most: int
) -> Pot:
    """A pot as after a distillation of a request's text. most: tokens of a slice."""
    text = random.Random(0).choices(range(runner.vocabulary), k=3 * config.pot_size)
    question = text[:CATALYST]
    session = Session(runner, tokenizer, config, template=True)
    while session.stats.distillations < 3:
        session.append_part(text, question, most, more=True)
    # a distillation whose catalyst is read by itself
    session.append_part(text, question, PART, more=False)
    session._reader.distiller.distill(session.pot, session._reader.last_catalyst)
    return session.pot


def repeat(pot: Pot, read: Callable[[], object]) -> None:
    """Read into a pot until that is recorded. Afterwards the pot is as before."""
    for _ in range(ROUNDS):
        before = pot.mark()
        read()
        pot.rollback(before)
