"""Python's own language reference, read in a pot of 1,024 entries by a model of 135M parameters.

The text is what `help()` shows: the topics that come with every Python, in alphabetical order, from
`specialnames` on until there are 33,000 tokens, four times as many as the model's window. The
question is known while reading, so it is the catalyst. For comparison the same model answers from
the two ends of the text, cut to the same budget.
"""

from __future__ import annotations

import os
import re
import sys
import time
import warnings

os.environ.setdefault("TQDM_DISABLE", "1")  # the loader's bars
warnings.filterwarnings("ignore")

import pydoc_data.topics  # noqa: E402

from infinipot import PotConfig, Session, load  # noqa: E402

QUESTION = "Which section of the Unicode Standard describes the casefolding algorithm?"
EXPECTED = "3.13"
SENTENCE = r"The casefolding algorithm is\s+described in section 3\.13[^.]*\."
FIRST_TOPIC = "specialnames"
TOKENS = 33_000
POT = PotConfig(pot_size=1024, distill_to=640, novelty=0.0, pool=13, recent=0)
ANSWER = {"max_tokens": 48, "stop": ("\n\n",)}


def reference(tokenizer) -> tuple[str, str]:
    """The text, and the name of its last topic."""
    parts: list[str] = []
    tokens = 0
    for topic, text in sorted(pydoc_data.topics.topics.items()):
        if topic >= FIRST_TOPIC and tokens < TOKENS:
            parts.append(text)
            tokens += len(tokenizer.encode(text))
            last = topic
    return "\n\n".join(parts), last


def progress(session: Session, whole: int):
    """Called after every chunk: a line on a terminal, redrawn."""

    def show() -> None:
        if sys.stderr.isatty():
            stats = session.stats
            line = f"  {stats.tokens_read:,} of about {whole:,} tokens, {stats.distillations} distillations, {stats.entries:,} entries"
            print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)

    return show


def main() -> None:
    print("Loading SmolLM2-135M-Instruct (embedded) ...", flush=True)
    model, tokenizer = load("smollm2")
    text, last = reference(tokenizer)
    window = model.config.max_position_embeddings
    total = len(tokenizer.encode(text))
    print(
        f"Reading Python {sys.version.split()[0]}'s reference, topics {FIRST_TOPIC} to {last}: {total:,} tokens"
    )
    print(
        f"The model's window is {window:,} tokens, the pot holds {POT.pot_size:,} entries.\n",
        flush=True,
    )
    session = Session(model, tokenizer, POT)
    started = time.perf_counter()
    session.append(text, question=QUESTION, progress=progress(session, total))
    took = time.perf_counter() - started
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    print(f"Question    {QUESTION}")
    print("With a pot  ", end="", flush=True)
    answer = ""
    for piece in session.stream(QUESTION, **ANSWER):
        answer += piece
        print(piece, end="", flush=True)
    short = Session(model, tokenizer, PotConfig(pot_size=POT.pot_size, policy="truncate"))
    short.append(text)
    print(f"\nTruncated   {' '.join(short.ask(QUESTION, **ANSWER).split())}")

    found = re.search(SENTENCE, text)
    if found:
        print(f"The text    at {found.start() / len(text):.0%}: {' '.join(found.group().split())}")
    print(
        f"The answer {'holds' if EXPECTED in answer else 'does not hold'} the text's {EXPECTED!r}.\n"
    )
    stats = session.stats
    mib = 2**20
    print(
        f"{stats.tokens_read:,} tokens read in {took:.0f} s ({stats.tokens_read / took:,.0f} tokens/s), {stats.distillations} distillations"
    )
    print(
        f"at most {stats.peak_entries:,} of {POT.pot_size:,} entries in any layer at any moment, question and answer included"
    )
    print(
        f"pot {stats.pot_bytes / mib:,.0f} MiB; a full cache of the same text {stats.full_cache_bytes / mib:,.0f} MiB"
    )


if __name__ == "__main__":
    main()
