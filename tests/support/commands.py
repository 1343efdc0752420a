"""The command line for tests: a model in a folder, a process, a terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from forked import Forked
from tiny import make_tiny

from infinipot.cli import main

TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
TEXT = (
    "The letter was hidden behind the clock by Anna, who told nobody about it until the winter came. "
    * 30
)

POT = ["--pot-size", "128", "--distill-to", "48", "--chunk-tokens", "16"]


def save_tiny(folder: Path) -> None:
    """A random Llama and a byte-level tokenizer with a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|start|>", "<|end|>"],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|end|>", chat_template=TEMPLATE
    )
    fast.save_pretrained(folder)
    tiny = make_tiny("llama", vocab=len(fast))
    tiny.lm_head.weight.data[:2] = 0  # it never ends an answer by itself
    tiny.config.max_position_embeddings = 4096  # no word about pots of the default size
    tiny.save_pretrained(folder)


def process(*args: str, **options: Any) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "OMP_NUM_THREADS": "1",
        **options.pop("env", {}),
    }
    return subprocess.Popen(
        [sys.executable, "-m", "infinipot.cli", *args], env=environment, **options
    )


def one_line(error: str, *parts: str) -> None:
    assert error.startswith("infinipot: ")
    assert error.count("\n") == 1, error
    for part in parts:
        assert part in error


class Terminal:
    """A child whose stdin and stderr are a terminal; what it shows there is gathered."""

    def __init__(self, *args: str, stdin: Any = None) -> None:
        self.master, slave = pty.openpty()
        self.child = Forked(
            lambda: main(list(args)),
            stdin=slave if stdin is None else stdin,
            stdout=subprocess.PIPE,
            stderr=slave,
            start_new_session=True,
            env={"TERM": "xterm"},
        )
        os.close(slave)
        self.shown = ""

    def until(self, text: str, seconds: float = 90, after: str = "") -> None:
        """Wait until a text is shown, behind the first `after`."""
        end = time.monotonic() + seconds
        while re.search(f"{re.escape(after)}.*{re.escape(text)}", self.shown, re.S) is None:
            assert time.monotonic() < end, self.shown
            if select.select([self.master], [], [], 0.1)[0]:
                try:
                    self.shown += os.read(self.master, 4096).decode(errors="replace")
                except OSError:  # the child is gone
                    assert text in self.shown, self.shown
                    return

    def close(self) -> tuple[int, str]:
        out = self.child.stdout.read().decode()
        code = self.child.wait(60)
        while select.select([self.master], [], [], 0.1)[0]:
            try:
                data = os.read(self.master, 4096)
            except OSError:
                break
            if not data:
                break
            self.shown += data.decode(errors="replace")
        os.close(self.master)
        return code, out
