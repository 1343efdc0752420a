"""Four questions about Python's own reference, answered from a pot of the default size by a model of
135M parameters.

The text is what `help()` shows: the topics that come with every Python, in alphabetical order, from
`specialnames` on, whole paragraphs until there are 17,600 tokens. That is eight times the pot and
twice the model's window.

How the questions were chosen: a text twice as long was cut into eight equal parts, and a question was
written about the paragraph in the middle of each part, with an answer that stands there word for
word. Nothing had been run before. The text of now is the first half, so that a reader waits less,
and the questions are the four of this half: they stand in the middles of its four equal parts. None
was changed, and none was left out for its result.

All options are the defaults. The questions are known while the text is read, so they are the
catalyst. Beside the pot, the same model answers from the two ends of the text, cut to the same
number of entries (truncation), and from the paragraph's own surroundings (full context, where it
fits: the whole text does not). The last shows what the model can do at best.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import textwrap
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("TQDM_DISABLE", "1")  # the loader's bars
warnings.filterwarnings("ignore")

import pydoc_data.topics  # noqa: E402

from infinipot import PotConfig, Session, load  # noqa: E402

FIRST_TOPIC = "specialnames"
TOKENS = 17_600
AROUND = 2500
"""Characters before and behind an answer that full context gets."""
MAX_TOKENS = 40
EVERY_S = 10
"""How often progress is shown where there is no terminal."""


@dataclass(frozen=True)
class Question:
    """answer: what a right answer holds. sentence: a pattern of where the text says so."""

    text: str
    answer: str
    sentence: str

    def right(self, reply: str) -> bool:
        pattern = rf"(?<![\w.]){re.escape(self.answer)}(?!\w|\.\d)"
        return re.search(pattern, reply, re.IGNORECASE) is not None


QUESTIONS = (
    Question(
        "What does a rich comparison method return if it does not implement the operation?",
        "NotImplemented",
        r"A rich comparison method may return the singleton \"NotImplemented\"",
    ),
    Question(
        "Which exception is raised when nonempty __slots__ are defined for a class derived from int, bytes or tuple?",
        "TypeError",
        r"\"TypeError\" will be raised if nonempty \*__slots__\*",
    ),
    Question(
        "Which abstract base class of collections.abc helps to create the methods of a mapping?",
        "MutableMapping",
        r"The \"collections\.abc\" module provides a\s+\"MutableMapping\"",
    ),
    Question(
        "Which section of the Unicode Standard describes the casefolding algorithm?",
        "3.13",
        r"The casefolding algorithm is\s+described in section 3\.13",
    ),
)


def reference(tokenizer) -> tuple[str, str]:
    """The text, and the name of the topic in which it ends."""
    paragraphs = (
        (paragraph, topic)
        for topic, text in sorted(pydoc_data.topics.topics.items())
        if topic >= FIRST_TOPIC
        for paragraph in text.split("\n\n")
    )
    taken: list[str] = []
    last = FIRST_TOPIC
    tokens = 0
    for paragraph, topic in paragraphs:
        taken.append(paragraph)
        last = topic
        tokens += len(tokenizer.encode(paragraph + "\n\n"))
        if tokens >= TOKENS:
            break
    return "\n\n".join(taken), last


class Progress:
    """Called after every chunk: a line redrawn on a terminal, else a line now and then."""

    def __init__(self, session: Session, whole: int) -> None:
        self.session = session
        self.whole = whole
        self.started = self.shown = time.monotonic()

    def __call__(self) -> None:
        now = time.monotonic()
        live = sys.stdout.isatty()
        if now - self.shown < (0.2 if live else EVERY_S):
            return
        self.shown = now
        read = min(self.session.stats.tokens_read, self.whole)  # the template's tokens, too
        left = (now - self.started) * (self.whole / read - 1)
        line = f"  {read:,} of {self.whole:,} tokens read, about {left:.0f} s left"
        print(f"\r\x1b[K{line}" if live else line, end="" if live else "\n", flush=True)

    def close(self) -> None:
        if sys.stdout.isatty():
            print("\r\x1b[K", end="", flush=True)


def ask_all(text: str, asked: list[Question], pot: Session, truncated: Session) -> list[dict]:
    """Ask each question three times, and show the answers."""
    rows = []
    for number, question in enumerate(asked, 1):
        print(f"\n{number}. {question.text}\n   the text says: {question.answer}", flush=True)
        at = re.search(question.sentence, text).start()
        page = Session(pot.runner, pot.tokenizer)
        page.append(text[max(0, at - AROUND) : at + AROUND], question=question.text)
        row = {"question": question.text, "answer": question.answer, "place": at / len(text)}
        sessions = {"pot": pot, "truncated": truncated, "page": page}
        for name, session in sessions.items():
            reply = session.ask(question.text, max_tokens=MAX_TOKENS)
            row[name] = question.right(reply)
            row[f"{name}_reply"] = reply
            start = f"   {name:9} {'right' if row[name] else 'wrong'}  "
            line = " ".join(reply.split())
            print(textwrap.fill(start + line, 110, subsequent_indent=" " * len(start)), flush=True)
        rows.append(row)
    return rows


def report(rows: list[dict], stats, took: float) -> None:
    def score(name: str) -> str:
        return f"{sum(row[name] for row in rows)} of {len(rows)}"

    mib = 2**20
    print(f"""
right answers  pot {score("pot")}   truncated {score("truncated")}   full context, of the page alone {score("page")}

{stats.tokens_read:,} tokens read in {took:.0f} s ({stats.tokens_read / took:,.0f} tokens/s), {stats.distillations} distillations
at most {stats.peak_entries:,} of {PotConfig().pot_size:,} entries in any layer at any moment, questions and answers included
pot {stats.pot_bytes / mib:,.0f} MiB; a full cache of the same text {stats.full_cache_bytes / mib:,.0f} MiB""")


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Questions about a text longer than the model's window."
    )
    parser.add_argument(
        "--record",
        action="store_true",
        help="add what was measured to benchmarks/results/demo.jsonl",
    )
    record = parser.parse_args().record
    print("Loading SmolLM2-135M-Instruct (embedded) ...", flush=True)
    model, tokenizer = load("smollm2")
    text, last = reference(tokenizer)
    asked = [question for question in QUESTIONS if re.search(question.sentence, text)]
    for question in QUESTIONS:
        if question not in asked:
            print(f"Left out, as this Python's reference does not say it: {question.text}")
    if not asked:
        sys.exit("No question is left. Take a Python from 3.10 to 3.13.")
    total = len(tokenizer.encode(text))
    window = model.config.max_position_embeddings
    version = sys.version.split()[0]
    print(
        f"Reading Python {version}'s reference, from {FIRST_TOPIC} into {last}: {total:,} tokens."
    )
    size = PotConfig().pot_size
    print(f"The model's window is {window:,} tokens, the pot holds {size:,} entries.", flush=True)
    session = Session(model, tokenizer)
    progress = Progress(session, total)
    started = time.perf_counter()
    session.append(text, question="\n".join(one.text for one in asked), progress=progress)
    took = time.perf_counter() - started
    progress.close()
    truncated = Session(session.runner, tokenizer, PotConfig(policy="truncate"))
    truncated.append(text)
    rows = ask_all(text, asked, session, truncated)
    report(rows, session.stats, took)
    if record:
        sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
        from machine import keep

        result = {"benchmark": "demo", "python": version, "tokens": total, "pot_size": size}
        keep("demo", {**result, "read_s": took, "cpu_s": time.process_time(), "rows": rows})


if __name__ == "__main__":
    main()
