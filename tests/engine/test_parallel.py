"""Tensor parallel through transformers' own plan: two processes on the CPU read, distil and answer as one does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist
from parallel_worker import VOCABULARY
from tiny import make_tiny


@pytest.mark.skipif(
    not dist.is_available() or not dist.is_gloo_available(), reason="torch was built without gloo"
)
def test_two_processes_equal_one(tmp_path: Path) -> None:
    make_tiny("llama", kv_heads=4, vocab=VOCABULARY).save_pretrained(tmp_path)
    tests = Path(__file__).parents[1] / "support"
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        tests / "parallel_worker.py",
        tmp_path,
    ]
    path = os.pathsep.join([str(tests), str(tests.parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    assert all(f"process {rank} of 2: the same" in done.stdout for rank in (0, 1))
