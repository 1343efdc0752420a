"""What a pot does, shown on Python's own reference with a model of 135M parameters.

The text is what `help()` shows: the topics that come with every Python, in alphabetical order, from
`specialnames` on, whole paragraphs until there are 17,600 tokens. That is eight times the pot and
twice the model's window. All options are the defaults.

1. Memory and speed while the text is read, beside plain transformers with a full cache. Its speed is
   that of the next tokens behind as many random entries: times do not depend on what entries hold.
2. Four questions to the long text, known while it is read, and asked only afterwards. Beside them the
   same model with the two ends of the text, cut to as many entries as the pot has (truncation), and
   with the paragraph's own surroundings (full context, where it fits: the whole text does not). The
   last shows what the model can do at best.
3. A text that fits is answered as by plain transformers, word for word.

How the questions were chosen: a text twice as long was cut into eight equal parts, and a question was
written about the paragraph in the middle of each part, with an answer that stands there word for
word. Nothing had been run before. The text of now is the first half, so that a reader waits less,
and the questions are the four of this half: they stand in the middles of its four equal parts. None
was changed, and none was left out for its result.

Four answers are few, so the demo shows a finer measure, too: how likely the model finds the words of
the text's own sentence, the mean over its tokens.
"""

from __future__ import annotations

import argparse
import math
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

import torch  # noqa: E402
from transformers import DynamicCache  # noqa: E402
from transformers.utils import logging  # noqa: E402

from infinipot import PotConfig, Session, load  # noqa: E402
from infinipot.bench import reading, stock  # noqa: E402
from infinipot.eval.teacher_forcing import Forced  # noqa: E402

FIRST_TOPIC = "specialnames"
TOKENS = 17_600
AROUND = 2500
"""Characters before and behind an answer that full context gets."""
MAX_TOKENS = 24
SHOWN = (2048, 4096, 8192)
"""Behind how many tokens memory and speed are shown, and at the end."""
NEXT = 128
"""How many tokens a full cache reads there."""
DECODED = 12
"""Tokens of an answer whose pace is taken."""
MIB = 2**20
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
    """Called after every chunk: a line redrawn on a terminal, else a line now and then. `marks` has
    tokens, seconds, entries and MiB of the pot from the beginning on."""

    def __init__(self, session: Session, whole: int) -> None:
        self.session = session
        self.whole = whole
        self.started = self.shown = time.monotonic()
        self.marks: list[tuple[int, float, int, float]] = []

    def __call__(self) -> None:
        now = time.monotonic()
        stats = self.session.stats
        read = min(stats.tokens_read, self.whole)  # the template's tokens, too
        self.marks.append((read, now - self.started, stats.peak_entries, stats.pot_bytes / MIB))
        live = sys.stdout.isatty()
        if now - self.shown < (0.2 if live else EVERY_S):
            return
        self.shown = now
        left = (now - self.started) * (self.whole / read - 1)
        line = f"  {read:,} of {self.whole:,} tokens read, about {left:.0f} s left"
        print(f"\r\x1b[K{line}" if live else line, end="" if live else "\n", flush=True)

    def close(self) -> None:
        if sys.stdout.isatty():
            print("\r\x1b[K", end="", flush=True)


def read(session: Session, text: str, tokens: int, question: str | None = None) -> Progress:
    """Read the text with progress."""
    progress = Progress(session, tokens)
    session.append(text, question=question, progress=progress)
    progress()
    progress.close()
    return progress


def full_cache(model, length: int) -> DynamicCache:
    """A cache of transformers with `length` random entries in each layer."""
    few = model(input_ids=torch.tensor([[1, 2]]), use_cache=True).past_key_values
    cache = DynamicCache()
    for number, layer in enumerate(few.layers):
        shape = (*layer.keys.shape[:2], length, layer.keys.shape[-1])
        keys, values = torch.rand_like(layer.keys.new_empty(2, *shape))
        cache.update(keys, values, number)
    return cache


@torch.no_grad()
def growing(model, ids: list[int], length: int) -> dict[str, float]:
    """Plain transformers behind `length` tokens: MiB, tokens/s of reading on, tokens/s of an answer."""
    cache = full_cache(model, length)
    size = sum(one.keys.nbytes + one.values.nbytes for one in cache.layers) / MIB
    started = time.perf_counter()
    stock.forward(model, torch.tensor([ids[:NEXT]]), cache)
    took = time.perf_counter() - started
    return {
        "mib": size,
        "read_tps": NEXT / took,
        "answer_tps": stock.answer(model, cache, 1, DECODED),
    }


def compare(session: Session, marks: list, ids: list[int]) -> list[dict]:
    """Show memory and speed of the pot beside those of a full cache."""
    print("""
1. Memory (MiB) and speed (tokens/s), beside plain transformers, whose cache keeps every token

     tokens   pot: entries      MiB  reading   full cache: MiB  reading  answering""")
    growing(session.runner.model, ids, NEXT)  # what a process does first is slow
    rows = []
    last = marks[-1][0]
    nearest = {min(marks, key=lambda mark: abs(mark[0] - place)) for place in (*SHOWN, last)}
    before = (0, 0.0)
    for tokens, seconds, entries, size in sorted(nearest):
        speed = (tokens - before[0]) / (seconds - before[1])
        before = (tokens, seconds)
        full = growing(session.runner.model, ids, tokens)
        print(
            f"   {tokens:8,}   {entries:12,} {size:8.0f} {speed:8.0f}   {full['mib']:15,.0f}"
            f" {full['read_tps']:8.0f} {full['answer_tps']:10.1f}",
            flush=True,
        )
        row = {"tokens": tokens, "entries": entries, "mib": size, "read_tps": speed}
        rows.append({**row, "full": full})
    pace = reading.answer(session, 1, DECODED)
    each = rows[-1]["full"]["mib"] / last
    print(f"""
   The pot answers {pace:.1f} tokens/s, now and behind any text. A million tokens would take
   the pot's {rows[-1]["mib"]:.0f} MiB, and {each * 2**20 / 1024:,.0f} GiB of a full cache.""")
    return [*rows, {"answer_tps": pace}]


def page_of(text: str, question: Question) -> str:
    at = re.search(question.sentence, text).start()
    return text[max(0, at - AROUND) : at + AROUND]


def stock_answer(pot: Session, page: str, question: str) -> str:
    """What plain transformers' `generate` answers to a page."""
    message = [{"role": "user", "content": f"{page}\n\n{question}"}]
    ids = pot.tokenizer.apply_chat_template(
        message, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    made = pot.runner.model.generate(**ids, max_new_tokens=MAX_TOKENS, do_sample=False)
    return pot.tokenizer.decode(made[0, ids["input_ids"].shape[1] :], skip_special_tokens=True)


def likely(session: Session, question: str, sentence: str) -> float:
    """How likely the model finds the sentence for an answer: the mean of its tokens, geometric."""
    forced = Forced(session.tokenizer.encode(sentence, add_special_tokens=False))
    options = {"max_tokens": len(forced.ids), "pick": forced, "stop_ids": set()}
    for _ in session.stream_ids(question, **options):
        pass
    return math.exp(-forced.loss / len(forced.ids))


def ask_all(text: str, asked: list[Question], sessions: dict[str, Session]) -> list[dict]:
    """Ask each question in each way, and show the answers. sessions: by the name that is shown."""
    rows = []
    pot = sessions["known"]
    print("""
2. Questions to the whole text: known while it was read, asked only now (unknown), of a text whose
   middle was cut out (truncated), and of the page alone with full context""")
    for number, question in enumerate(asked, 1):
        print(f"\n{number}. {question.text}\n   the text says: {question.answer}", flush=True)
        found = re.search(question.sentence, text)
        page = Session(pot.runner, pot.tokenizer)
        page.append(page_of(text, question), question=question.text)
        row = {"question": question.text, "answer": question.answer}
        row["place"] = found.start() / len(text)
        for name, session in {**sessions, "page": page}.items():
            reply = session.ask(question.text, max_tokens=MAX_TOKENS)
            row[name] = question.right(reply)
            row[f"{name}_reply"] = reply
            row[f"{name}_likely"] = likely(session, question.text, " ".join(found[0].split()))
            start = f"   {name:9} {'right' if row[name] else 'wrong'}  "
            line = " ".join(reply.split())
            print(textwrap.fill(start + line, 110, subsequent_indent=" " * len(start)), flush=True)
        rows.append(row)
    return rows


NAMES = {
    "known": "pot, question known while reading",
    "unknown": "pot, question asked afterwards",
    "truncated": "text cut to the pot's size",
    "page": "full context, of the page alone",
}


def report(rows: list[dict]) -> None:
    """Show the scores: right answers, and how likely the model finds the text's own sentences."""
    print(f"\n   {'':34} right    words of the text likely by")
    for name, title in NAMES.items():
        right = sum(row[name] for row in rows)
        mean = math.exp(sum(math.log(row[f"{name}_likely"]) for row in rows) / len(rows))
        print(f"   {title:34} {right} of {len(rows)}   {100 * mean:.0f} %")
    print("""
   A model this small seldom answers such questions, not even from the page. docs/results.md has
   larger models, and where a pot loses.""")


def short_text(session: Session, text: str, question: Question) -> None:
    """Show that nothing is lost while a text fits."""
    page = page_of(text, question)
    fits = Session(session.runner, session.tokenizer)
    fits.append(page, question=question.text)
    same = fits.ask(question.text, max_tokens=MAX_TOKENS) == stock_answer(
        session, page, question.text
    )
    print(f"""
3. A text that fits: the first question, asked of its page ({fits.stats.tokens_read:,} tokens)
   The answer is word for word that of plain transformers: {"yes" if same else "no"}""")


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
    logging.set_verbosity_error()
    model, tokenizer = load("smollm2")
    text, last = reference(tokenizer)
    asked = [question for question in QUESTIONS if re.search(question.sentence, text)]
    for question in QUESTIONS:
        if question not in asked:
            print(f"Left out, as this Python's reference does not say it: {question.text}")
    if not asked:
        sys.exit("No question is left. Take a Python from 3.10 to 3.13.")
    ids = tokenizer.encode(text)
    total = len(ids)
    window = model.config.max_position_embeddings
    version = sys.version.split()[0]
    print(
        f"Reading Python {version}'s reference, from {FIRST_TOPIC} into {last}: {total:,} tokens."
    )
    size = PotConfig().pot_size
    print(f"The model's window is {window:,} tokens, the pot holds {size:,} entries.", flush=True)
    known = Session(model, tokenizer)
    started = time.perf_counter()
    progress = read(known, text, total, "\n".join(one.text for one in asked))
    took = time.perf_counter() - started
    print(f"Read in {took:.0f} s, {known.stats.distillations} distillations.")
    speed = compare(known, progress.marks, ids)
    print("\nReading once more, without the questions ...", flush=True)
    unknown = Session(known.runner, tokenizer)
    read(unknown, text, total)
    truncated = Session(known.runner, tokenizer, PotConfig(policy="truncate"))
    truncated.append(text)
    rows = ask_all(text, asked, {"known": known, "unknown": unknown, "truncated": truncated})
    report(rows)
    short_text(known, text, asked[0])
    print(f"\nAll of it took {time.perf_counter() - started:.0f} s.")
    if record:
        sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
        from machine import keep

        result = {"benchmark": "demo", "python": version, "tokens": total, "pot_size": size}
        measured = {"read_s": took, "cpu_s": time.process_time(), "speed": speed, "rows": rows}
        keep("demo", {**result, **measured})


if __name__ == "__main__":
    main()
