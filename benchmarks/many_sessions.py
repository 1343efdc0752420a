"""Many conversations at a server, one after another: the memory must stay flat.

    python benchmarks/many_sessions.py [MODEL] [--sessions 10000] [--long-words N]

MODEL: `tiny` (random weights, the default) or whatever `infinipot serve` takes. Every conversation has
a first message of its own, longer than the pot in every fourth one, and two tokens of answer. Pots of
earlier conversations are evicted all the time.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx2 as httpx
import psutil
from machine import keep
from server_process import served, tiny

SAMPLES = 40


def words(chance: random.Random, count: int) -> str:
    return " ".join(
        chance.choice(["keeper", "hid", "letter", "under", "third", "step", "dog", "did"])
        for _ in range(count)
    )


def device_bytes(pid: int) -> int | None:
    """Bytes that a process has on NVIDIA GPUs; None without one."""
    query = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    try:
        lines = subprocess.run(
            query, capture_output=True, text=True, check=True
        ).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        return None
    found = [line.split(",") for line in lines]
    return sum(int(used) << 20 for other, used in found if int(other) == pid)


def converse(http: httpx.Client, model: str, number: int, long_words: int) -> None:
    chance = random.Random(number)
    count = long_words if number % 4 == 0 else 8
    body = {
        "model": model,
        "messages": [{"role": "user", "content": f"{number} {words(chance, count)}"}],
        "max_tokens": 2,
    }
    http.post("/v1/chat/completions", json=body).raise_for_status()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="tiny")
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--pot-size", type=int, default=128)
    parser.add_argument(
        "--long-words", type=int, help="of every fourth message [default: twice the pot's size]"
    )
    args = parser.parse_args()
    long_words = args.long_words or 2 * args.pot_size
    rss: list[int] = []
    device: list[int] = []
    files: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        model = args.model
        if model == "tiny":
            model = tiny(Path(folder) / "tiny")
        options = ("--pot-size", str(args.pot_size), "--max-sessions", "8")
        with served(model, *options, "--pot-dir", f"{folder}/pots") as (address, pid):
            process = psutil.Process(pid)
            with httpx.Client(base_url=address, timeout=300) as http:
                name = http.get("/v1/models").json()["data"][0]["id"]
                started = time.monotonic()
                for number in range(args.sessions):
                    converse(http, name, number, long_words)
                    if number % max(1, args.sessions // SAMPLES) == 0:
                        rss.append(process.memory_info().rss)
                        files.append(process.num_fds())
                        device.append(device_bytes(pid) or 0)
                seconds = time.monotonic() - started
    quarters = [rss[start : start + SAMPLES // 4] for start in range(0, SAMPLES, SAMPLES // 4)]
    means = [round(statistics.fmean(some)) for some in quarters if some]
    print(f"RSS by quarters: {[round(x / 1e6, 1) for x in means]} MB", file=sys.stderr)
    keep(
        "many_sessions",
        {
            "model": args.model,
            "sessions": args.sessions,
            "pot_size": args.pot_size,
            "long_words": long_words,
            "seconds": round(seconds, 1),
            "rss_bytes_by_quarter": means,
            "device_bytes_first_last": [device[len(device) // 4], device[-1]],
            "files_first_last": [files[len(files) // 4], files[-1]],
        },
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
