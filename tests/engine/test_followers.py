"""`load(tensor_parallel=2)`: another process follows this one. What is read, kept, said and saved is as in one process; if a process ends,
all do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import followers_worker
import pytest
import torch
import torch.distributed as dist
from tiny import make_tiny, make_tokenizer

devices = [
    pytest.param(
        "cpu",
        marks=pytest.mark.skipif(
            not dist.is_available() or not dist.is_gloo_available(), reason="torch has no gloo"
        ),
    ),
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
        ],
    ),
]


@pytest.mark.parametrize("device", devices)
def test_two_processes_do_what_one_does(device: str, tmp_path: Path) -> None:
    tiny = make_tiny("qwen2", vocab=followers_worker.VOCABULARY, tied=True)
    tiny.save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    worker = subprocess.run(
        [sys.executable, followers_worker.__file__, str(tmp_path), device],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "the same" in worker.stdout, worker.stderr[-6000:]
    assert worker.returncode == 1
    line = worker.stderr.strip().splitlines()[-1]
    assert line.startswith(
        "error: process 1 of 2 of the model (tensor parallel) was ended by SIGKILL"
    )
