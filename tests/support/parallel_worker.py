"""What each process of `test_parallel.py` runs under torchrun: a model shared out over all must do what it does in one process."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from helpers import CATALYST, assert_close, greedy, kept, random_ids
from tiny import make_tiny, make_tokenizer
from transformers import AutoModelForCausalLM
from transformers.distributed import DistributedConfig

from infinipot import PotConfig, PotFileError, Session, generate

VOCABULARY = 20_000
"""More than one block of novelty, so that a part of the output layer would stand in for it."""
OPTIONS = {
    "both": {},
    "h2o": {"policy": "h2o"},
    "tova": {"policy": "tova"},
    "eight bits": {"pot_dtype": "int8"},
}


def read(model, **options) -> tuple[Session, torch.Tensor, list[int]]:
    session = Session(model, make_tokenizer(), PotConfig(pot_size=40, distill_to=20, **options))
    session.append(random_ids(120), question=CATALYST)
    return (
        session,
        session.logits,
        list(session.stream_ids([5, 6, 7], max_tokens=5, pick=greedy, stop_ids=set())),
    )


def work(folder: Path) -> None:
    torch.set_num_threads(1)
    shared = AutoModelForCausalLM.from_pretrained(
        folder, distributed_config=DistributedConfig(tp_plan="auto"), dtype=torch.float32
    ).eval()
    alone, rank = make_tiny("llama", kv_heads=4, vocab=VOCABULARY), dist.get_rank()
    assert "DTensor" in type(shared.lm_head.weight).__name__
    for name, options in OPTIONS.items():
        (mine, logits, said), (whole, expected, told) = (
            read(shared, **options),
            read(alone, **options),
        )
        heads = mine.pot.bounded[0].keys.shape[1]
        assert heads == 2, "half of four"
        assert kept(mine) == [layer[rank * heads : (rank + 1) * heads] for layer in kept(whole)], (
            name
        )
        assert mine.stats.distillations == whole.stats.distillations >= 4
        assert mine.stats.peak_entries == 40
        assert 2 * mine.stats.pot_bytes == whole.stats.pot_bytes
        assert_close(name, logits, expected, 1e-3 if "pot_dtype" in options else 1e-5)
        assert said == told
    ids, pot = torch.tensor([random_ids(60)]), PotConfig(pot_size=40)
    answers = [
        m.generate(
            ids,
            custom_generate=generate,
            pot=pot,
            max_new_tokens=4,
            do_sample=False,
            pad_token_id=0,
        )
        for m in (shared, alone)
    ]
    assert torch.equal(*answers)
    with pytest.raises(PotFileError, match="tensor parallel"):
        mine.save(folder / "a.pot")
    with pytest.raises(ValueError, match="give a seed"):
        mine.ask("Who?", temperature=1.0)
    print(f"process {rank} of {dist.get_world_size()}: the same")
    dist.barrier()
