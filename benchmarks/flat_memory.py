"""Peak memory of the command line on a short and on a long text from a generator on stdin: it must not grow.

    python benchmarks/flat_memory.py [--tokens 16384 131072] [--model smollm2]

Runs `infinipot generate MODEL -f - --pot-size 1024` once a length and compares the peak resident memory of the processes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time

from machine import keep

SENTENCE = "In the year {0} the keeper of light number {1} wrote {2} lines about the weather and counted {3} ships before the lamp went out. "
TOKENS_A_SENTENCE = 33
"""With the embedded model's tokenizer, on average; the result states the tokens really read."""


def read_all(model: str, tokens: int) -> dict[str, float]:
    """Feed about so many tokens, made as they are needed, to a new process. Returns tokens read, peak bytes, seconds."""
    command = [sys.executable, "-m", "infinipot.cli", "generate", model, "-f", "-", "--pot-size", "1024", "--distill-to", "512"]
    command += ["-p", "How many ships did the keeper of light number 7 count?", "--max-tokens", "16", "--json", "--quiet"]
    started = time.perf_counter()
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None
    assert child.stdout is not None
    for number in range(tokens // TOKENS_A_SENTENCE):
        child.stdin.write(SENTENCE.format(1700 + number % 300, number % 97, number * 7919 % 1009, number * 31 % 53))
    child.stdin.close()
    answer = json.loads(child.stdout.read())
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"the command failed with status {status}")
    return {
        "tokens": answer["usage"]["prompt_tokens"],
        "peak_rss_bytes": usage.ru_maxrss * 1024,
        "peak_entries": answer["pot"]["peak_entries"],
        "distillations": answer["pot"]["distillations"],
        "read_tps": answer["timings"]["read_tps"],
        "wall_s": round(time.perf_counter() - started, 1),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs=2, default=(16_384, 131_072))
    parser.add_argument("--model", default="smollm2")
    args = parser.parse_args()
    rows = [read_all(args.model, tokens) for tokens in args.tokens]
    growth = rows[1]["peak_rss_bytes"] / rows[0]["peak_rss_bytes"] - 1
    for row in rows:
        print(f"{row['tokens']:>9,} tokens: peak {row['peak_rss_bytes'] / 2**20:,.0f} MiB, {row['read_tps']:,.0f} tok/s", file=sys.stderr)
    print(f"growth {100 * growth:+.2f} % (allowed: 3 %)", file=sys.stderr)
    keep("flat_memory", {"model": args.model, "rows": rows, "growth": round(growth, 5)})
    sys.exit(growth >= 0.03)
