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
from infinipot.engine.cuda_graphs import CHUNK_ROWS, graph_cache, next_above, seen_by_kernel
from infinipot.engine.graph_step import ROWS
from infinipot.engine.observe import CatalystLook
from infinipot.engine.plan import GPU_CHUNK_TOKENS
from infinipot.engine.reader import NoRoom
from infinipot.model.runner import ModelRunner
from infinipot.server.settings import Settings
from infinipot.session import Session

log = logging.getLogger("infinipot")
CATALYST = 32
"""Tokens of the questions by which trial texts are distilled. Other lengths use the same kernels."""
FEWEST_STEPS = 64
"""Rows up to which steps are recorded, however few sessions there may be: short prompts are read in
steps, too."""
ROUNDS = 3
"""A first round loads kernels, a second one records, a third one needs nothing more."""


def warm_up(runner: ModelRunner, tokenizer: PreTrainedTokenizerBase, settings: Settings) -> None:
    """Read a trial text, and make the recordings of chunks, and of steps for `max_sessions`. Does
    nothing where nothing is recorded."""
    graphs = graph_cache(runner)
    if runner.device.type != "cuda" or graphs.unrecordable or not bounded(settings.config):
        return
    started = time.perf_counter()
    try:
        session = trial(runner, tokenizer, settings.config)
    except NoRoom:  # a pot too small for a trial; its recordings are made when they are needed
        return
    read_unasked(runner, tokenizer, settings.config)
    record_chunks(runner, session)
    record_steps(runner, session.pot, settings.max_sessions)
    torch.cuda.synchronize(runner.device)
    log.info("recordings took %.1f s", time.perf_counter() - started)


def record_chunks(runner: ModelRunner, session: Session) -> None:
    """Record chunks of all lengths, with a catalyst and without, by reading one token with each."""
    graphs = graph_cache(runner)
    pot = session.pot
    if not pot.by_address or pot.watched:
        return
    looks: list[CatalystLook | None] = [None]
    if "catalyst" in session._reader.plan.needs:
        looks.append(CatalystLook(1, session._reader.plan.gqa, session._reader.plan.once))
    ids = torch.zeros(1, 1, dtype=torch.long, device=runner.device)
    for rows in CHUNK_ROWS:
        for look in looks:
            if rows <= pot.bounded[0].capacity and seen_by_kernel(look, pot):
                repeat(pot, partial(graphs.chunk_of, rows, pot, ids, look))


def most_rows(sessions: int) -> int:
    """The rows of the largest step that is recorded for so many sessions."""
    return min(ROWS[-1], next_above(ROWS, max(FEWEST_STEPS, sessions)))


def record_steps(runner: ModelRunner, pot: Pot, sessions: int) -> None:
    """Record steps for as many answers as there may be sessions."""
    graphs = graph_cache(runner)
    for rows in [rows for rows in ROWS if rows <= min(pot.room, most_rows(sessions))]:
        ids = torch.zeros(rows, 1, dtype=torch.long, device=runner.device)
        repeat(pot, partial(graphs.step, [pot], [rows], ids, watched=False))


def bounded(config: PotConfig) -> bool:
    """Whether pots are distilled while they are read."""
    return config.policy.bounded and config.prefill == "bounded"


def trial(runner: ModelRunner, tokenizer: PreTrainedTokenizerBase, config: PotConfig) -> Session:
    """A session as after a request's text. Its distillations load their kernels."""
    text = random.Random(0).choices(range(runner.vocabulary), k=3 * config.pot_size)
    question = text[:CATALYST]
    session = Session(runner, tokenizer, config, template=True)
    while session.stats.distillations < 3:
        session.append_part(text, question, GPU_CHUNK_TOKENS, more=True)
    # a distillation whose catalyst is read by itself
    session.append_part(text, question, 1, more=False)
    session._reader.distiller.distill(session.pot, session._reader.last_catalyst)
    return session


def read_unasked(
    runner: ModelRunner, tokenizer: PreTrainedTokenizerBase, config: PotConfig
) -> None:
    """Distil a trial text without a question. That loads other kernels."""
    text = random.Random(1).choices(range(runner.vocabulary), k=2 * config.pot_size)
    session = Session(runner, tokenizer, config, template=True)
    while session.stats.distillations < 2:
        session.append_part(text, None, GPU_CHUNK_TOKENS, more=True)


def repeat(pot: Pot, read: Callable[[], object]) -> None:
    """Read into a pot until that is recorded. Afterwards the pot is as before."""
    for _ in range(ROUNDS):
        before = pot.mark()
        read()
        pot.rollback(before)
