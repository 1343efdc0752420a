"""Tensor parallel through transformers' own plan: two processes on the CPU read, distil and answer as one does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist
from live import free_port
from parallel_worker import VOCABULARY
from tiny import make_tiny


@pytest.mark.skipif(
    not dist.is_available() or not dist.is_gloo_available(), reason="torch was built without gloo"
)
def test_two_processes_equal_one(tmp_path: Path) -> None:
    make_tiny("llama", kv_heads=4, vocab=VOCABULARY).save_pretrained(tmp_path)
    tests = Path(__file__).parents[1] / "support"
    path = os.pathsep.join([str(tests), str(tests.parents[1]), os.environ.get("PYTHONPATH", "")])
    shared = {
        **os.environ,
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    command = [sys.executable, str(tests / "parallel_worker.py"), str(tmp_path)]
    workers = [  # as torchrun starts them
        subprocess.Popen(
            command,
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for rank, worker in enumerate(workers):
            out, err = worker.communicate(timeout=120)
            assert worker.returncode == 0, out[-2000:] + err[-6000:]
            assert f"process {rank} of 2: the same" in out
    finally:
        for worker in workers:
            worker.kill()
