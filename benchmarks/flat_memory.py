"""Peak memory of the command line on a short and on a long text from a generator on stdin: it must
not grow.

    python benchmarks/flat_memory.py [--tokens 16384 131072] [--model smollm2]

Runs `infinipot generate MODEL -f - --pot-size 1024` once a length and compares the peak resident
memory of the processes: of their whole life, and (on Linux) since reading began, which loading the
weights, the greater peak, would hide.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from machine import keep

BEGUN = 100
"""Sentences after which the child is surely reading: its stdin holds 4 KiB."""
SENTENCE = "In the year {0} the keeper of light number {1} wrote {2} lines about the weather and counted {3} ships before the lamp went out. "
TOKENS_A_SENTENCE = 36.6
"""With the embedded model's tokenizer, on average; the result states the tokens really read."""


def forget_peak(pid: int) -> int:
    """The peak resident bytes of a process until now, which begins anew; 0 where the system cannot
    say."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        Path(f"/proc/{pid}/clear_refs").write_text("5")
    except OSError:
        return 0
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def read_all(model: str, tokens: int) -> dict[str, Any]:
    """Feed about so many tokens, made as they are needed, to a new process. Returns tokens read,
    peak bytes, seconds."""
    command = [
        sys.executable,
        "-m",
        "infinipot.cli",
        "generate",
        model,
        "-f",
        "-",
        "--pot-size",
        "1024",
        "--distill-to",
        "512",
    ]
    command += [
        "-p",
        "How many ships did the keeper of light number 7 count?",
        "--max-tokens",
        "16",
        "--json",
        "--quiet",
    ]
    started = time.perf_counter()
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pipesize=4096
    )
    assert child.stdin is not None
    assert child.stdout is not None
    loading = 0
    for number in range(round(tokens / TOKENS_A_SENTENCE)):
        if number == BEGUN:
            loading = forget_peak(child.pid)
        child.stdin.write(
            SENTENCE.format(
                1700 + number % 300, number % 97, number * 7919 % 1009, number * 31 % 53
            )
        )
    child.stdin.close()
    answer = json.loads(child.stdout.read())
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"the command failed with status {status}")
    return {
        "tokens": answer["usage"]["prompt_tokens"],
        "peak_rss_bytes": max(loading, usage.ru_maxrss * 1024),
        "reading_peak_rss_bytes": usage.ru_maxrss * 1024 if loading else None,
        "peak_entries": answer["pot"]["peak_entries"],
        "distillations": answer["pot"]["distillations"],
        "read_tps": answer["timings"]["read_tps"],
        "wall_s": round(time.perf_counter() - started, 1),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, nargs=2, default=(16_384, 131_072))
    parser.add_argument("--model", default="smollm2")
    args = parser.parse_args()
    rows = [read_all(args.model, tokens) for tokens in args.tokens]
    growths = {}
    for name in ("peak_rss_bytes", "reading_peak_rss_bytes"):
        short, long = (row[name] for row in rows)
        if short and long:
            growths[name] = round(long / short - 1, 5)
            print(
                f"{name}: {short / 2**20:,.0f} -> {long / 2**20:,.0f} MiB, {100 * growths[name]:+.2f} % (allowed: 3 %)",
                file=sys.stderr,
            )
    print(
        "; ".join(f"{row['tokens']:,} tokens at {row['read_tps']:,.0f} tok/s" for row in rows),
        file=sys.stderr,
    )
    keep("flat_memory", {"model": args.model, "rows": rows, "growth": growths})
    sys.exit(max(growths.values()) >= 0.03)
