"""How fast a model's weights read on a GPU with the infinipot that Python finds first: for
comparing versions of the engine.

    python benchmarks/reading_speed.py MODEL [--tokens 32768]
    git worktree add ../first f1abd63 && PYTHONPATH=../first python benchmarks/reading_speed.py MODEL      # the first version

Each round is a new session, so the first one also shows what starting costs.
"""

from __future__ import annotations

import argparse
import time

import torch

import infinipot
from infinipot import PotConfig, Session, load

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("model")
parser.add_argument("--tokens", type=int, default=32_768)
parser.add_argument("--pot-size", type=int, default=4096)
parser.add_argument("--rounds", type=int, default=4)
parser.add_argument("--device", default="cuda")
args = parser.parse_args()

runner, tokenizer = load(args.model, dtype="bfloat16", device=args.device)
vocabulary = runner.get_input_embeddings().num_embeddings
ids = torch.randint(vocabulary, (args.tokens,), generator=torch.Generator().manual_seed(0)).tolist()
print(infinipot.__file__)
for number in range(args.rounds):
    session = Session(
        runner, None, PotConfig(pot_size=args.pot_size, distill_to=args.pot_size // 2)
    )
    runner = (
        session.runner
    )  # what was found out about the model, and recorded, serves the next round
    started = time.perf_counter()
    session.append(ids, question=ids[:32])
    session.logits.tolist()  # waits for the device
    print(f"round {number + 1}: {args.tokens / (time.perf_counter() - started):,.0f} tokens/s")
    del session
