"""Bad input in bulk: requests made from the server's own OpenAPI document and by spoiling good
ones.

    python benchmarks/server_input.py [--requests 10000]

A server with a tiny model gets them all, half of each kind, from four clients at once. Only
documented answers are allowed, never a failure inside; afterwards it must answer as before. How
much memory it held before and after is in the result.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2 as httpx
import psutil
from machine import keep
from server_process import TESTS, served, tiny

ALLOWED = {200, 201, 400, 401, 403, 404, 405, 409, 413, 429}
HELLO = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}


def spoiled(address: str, count: int) -> tuple[Counter[int], list[str]]:
    """Statuses of requests by mutation, and the answers that are not allowed."""
    sys.path.insert(0, str(TESTS))
    from mutations import requests

    def some(seed: int) -> tuple[Counter[int], list[str]]:
        statuses: Counter[int] = Counter()
        wrong = []
        with httpx.Client(base_url=address, timeout=120) as http:
            for method, path, body, headers in requests(seed, count // 4):
                reply = http.request(method, path, content=body, headers=headers)
                statuses[reply.status_code] += 1
                if reply.status_code not in ALLOWED:
                    wrong.append(
                        f"{method} {path} {body!r}: {reply.status_code} {reply.text[:200]}"
                    )
        return statuses, wrong

    with ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(some, range(4)))
    return sum((statuses for statuses, _ in parts), Counter()), [
        line for _, wrong in parts for line in wrong
    ]


HOOKS = """
import schemathesis

@schemathesis.hook
def before_call(context, case, kwargs):
    for name in ("max_tokens", "max_completion_tokens"):
        if isinstance(case.body, dict) and isinstance(case.body.get(name), int) and case.body[name] > 64:
            case.body[name] = 64
"""
"""An answer may be as long as is asked for, and this model never ends one: what would take hours is
asked for shorter."""


def generated(address: str, count: int) -> tuple[int, str]:
    """schemathesis' exit code and the end of what it said. It makes about so many requests, the
    same number for each operation."""
    operations = 16
    command = [
        Path(sys.executable).parent / "schemathesis",
        "run",
        f"{address}/openapi.json",
        "--max-examples",
        str(count // operations),
    ]
    command += [
        "--phases",
        "fuzzing",
        "--checks",
        "not_a_server_error,status_code_conformance,content_type_conformance",
        "--workers",
        "4",
    ]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "hooks.py").write_text(HOOKS)
        there = {
            **os.environ,
            "SCHEMATHESIS_HOOKS": "hooks",
            "PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}",
        }
        done = subprocess.run(
            [*command, "--mode", "all", "--seed", "1"], capture_output=True, text=True, env=there
        )
    return done.returncode, done.stdout[-6000:]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=10_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = tiny(Path(folder) / "tiny")
        with served(
            model,
            "--pot-size",
            "256",
            "--pot-dir",
            f"{folder}/pots",
            "--max-body-mb",
            "1",
            "--max-tokens",
            "8",
        ) as (address, pid):
            before = httpx.post(f"{address}/v1/chat/completions", json=HELLO).json()["choices"]
            spoiled(address, 400)  # warm up
            first = psutil.Process(pid).memory_info().rss
            statuses, wrong = spoiled(address, args.requests // 2)
            code, said = generated(address, args.requests // 2)
            last = psutil.Process(pid).memory_info().rss
            after = httpx.post(f"{address}/v1/chat/completions", json=HELLO).json()["choices"]
            strays = [
                str(path) for path in Path(folder).iterdir() if path.name not in ("tiny", "pots")
            ]
    print(said, file=sys.stderr)
    for line in wrong[:10]:
        print(line, file=sys.stderr)
    result = {
        "spoiled": dict(statuses),
        "not_allowed": len(wrong),
        "schemathesis_exit": code,
        "rss_bytes": [first, last],
        "strays": strays,
    }
    keep("server_input", {**result, "same_answer": before == after})
    sys.exit(bool(wrong or code or strays or before != after))
