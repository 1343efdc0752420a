"""Save a model with random weights to a folder, for servers that load one.

    python benchmarks/shape_folder.py SHAPE FOLDER --tokenizer FOLDER

SHAPE: from `infinipot.bench.shapes.SHAPES`. The tokenizer is copied; the vocabulary must hold its ids.
"""

from __future__ import annotations

import argparse

import torch
from transformers import AutoTokenizer

from infinipot.bench.shapes import SHAPES, shaped


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("folder")
    parser.add_argument("--tokenizer", required=True)
    args = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(args.tokenizer, trust_remote_code=False)
    model = shaped(args.shape, device=torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    if len(tokenizer) > model.config.vocab_size:
        raise SystemExit(
            f"the tokenizer has {len(tokenizer):,} ids and {args.shape} only "
            f"{model.config.vocab_size:,}: take another one of the two"
        )
    model.save_pretrained(args.folder)
    tokenizer.save_pretrained(args.folder)


if __name__ == "__main__":
    main()
