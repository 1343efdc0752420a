"""Make a model's recordings before the server is ready."""

from __future__ import annotations

import logging
import random
import time

import torch

from infinipot.engine.cuda_graphs import graph_cache
from infinipot.engine.graph_step import ROWS
from infinipot.model.runner import ModelRunner
from infinipot.server.settings import Settings
from infinipot.session import Session

log = logging.getLogger("infinipot")
CATALYST = 32
"""Tokens of the question by which trial texts are distilled. Recordings serve other lengths, too."""
ROUNDS = 3
"""A first round loads kernels, a second one records, a third one needs nothing more."""


def warm_up(runner: ModelRunner, settings: Settings) -> None:
    """Read trial texts, and make steps of all sizes for `max_sessions`, so that what follows finds
    its recordings. Does nothing where nothing is recorded."""
    graphs = graph_cache(runner)
    if runner.device.type != "cuda" or graphs.unrecordable:
        return
    started = time.perf_counter()
    text = random.Random(0).choices(range(runner.vocabulary), k=2 * settings.config.pot_size)
    session = Session(runner, None, settings.config)
    for _ in range(ROUNDS):
        session = Session(runner, None, settings.config)
        session.append(text, question=text[:CATALYST])
    pot = session.pot
    for rows in ROWS:
        ids = torch.zeros(rows, 1, dtype=torch.long, device=runner.device)
        for _ in range(ROUNDS):
            before = pot.mark()
            if rows > pot.room or graphs.step([pot], [rows], ids, watched=False) is None:
                break
            pot.rollback(before)
        if rows >= settings.max_sessions:
            break
    torch.cuda.synchronize(runner.device)
    log.info("recordings took %.1f s", time.perf_counter() - started)
