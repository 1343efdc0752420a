"""`load(tensor_parallel=2)`: another process follows this one. What is read, kept, said and saved is as in one process; if a process ends,
all do."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

import followers_worker
import pytest
import torch
import torch.distributed as dist
from forked import Forked
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
    shown = {"stdout": tmp_path / "stdout", "stderr": tmp_path / "stderr"}
    with shown["stdout"].open("w") as out, shown["stderr"].open("w") as err:
        if device == "cpu":
            work = functools.partial(followers_worker.work, tmp_path, device)
            code = Forked(work, stdout=out.fileno(), stderr=err.fileno()).wait(300)
        else:  # CUDA does not survive a fork
            command = [sys.executable, followers_worker.__file__, str(tmp_path), device]
            code = subprocess.run(
                command, stdout=out, stderr=err, timeout=300, check=False
            ).returncode
    problem = shown["stderr"].read_text("utf-8")
    assert "the same" in shown["stdout"].read_text("utf-8"), problem[-6000:]
    assert code == 1
    line = problem.strip().splitlines()[-1]
    assert line.startswith(
        "error: process 1 of 2 of the model (tensor parallel) was ended by SIGKILL"
    )
