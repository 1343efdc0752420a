"""Tensor parallel through transformers' own plan: two processes on the CPU read, distil and answer as one does."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from forked import Forked
from live import free_port
from parallel_worker import VOCABULARY, work
from tiny import make_tiny


@pytest.mark.skipif(
    not dist.is_available() or not dist.is_gloo_available(), reason="torch was built without gloo"
)
def test_two_processes_equal_one(tmp_path: Path) -> None:
    if torch.cuda.is_initialized():
        pytest.skip("an earlier test of this process used a GPU, which a fork of it cannot")
    make_tiny("llama", kv_heads=4, vocab=VOCABULARY).save_pretrained(tmp_path)
    shared = {
        "CUDA_VISIBLE_DEVICES": "",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    workers = [  # as torchrun starts them
        Forked(
            lambda: work(tmp_path),
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for rank in range(2)
    ]
    try:
        for rank, worker in enumerate(workers):
            out = worker.stdout.read().decode()
            assert worker.wait() == 0, out[-6000:]
            assert f"process {rank} of 2: the same" in out
    finally:
        for worker in workers:
            worker.kill()
