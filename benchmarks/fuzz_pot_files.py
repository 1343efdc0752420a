"""Pot files that somebody has changed, in bulk: each must be refused in one sentence, or work.

    python benchmarks/fuzz_pot_files.py [--files 10000] [--seed 1]

Changes header, table of tensors, shapes, values and bytes of files of many policies, models and
formats, mostly with the right hash. What loads must be asked, read on, be forked, saved and loaded
again. The process may take only `--memory-mb` more than before, and no file may make it grow by
more than 32 MB. Files that are neither refused nor work are kept in `--keep`. Ctrl-C ends it with a
line about the files so far.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import torch
from machine import keep
from server_process import TESTS

GROWTH = 32 << 20
"""Bytes by which the largest size of the process may grow at one file."""


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def fuzz(files: int, seed: int, folder: Path, kept: Path | None) -> dict[str, Any]:
    from pot_mutations import KINDS, changed_files, outcome, sample_files

    samples = sample_files(folder, list(KINDS))
    for sample in samples:  # what is right must work; this also warms up
        assert outcome(sample, folder / f"{sample.kind}.pot") == "works", sample.kind
    counts: Counter[str] = Counter()
    by_change: Counter[str] = Counter()
    path = folder / "changed.pot"
    largest = 0
    for number, (sample, change, content) in enumerate(changed_files(samples, seed, files)):
        path.write_bytes(content)
        before = peak_bytes()
        try:
            result = outcome(sample, path)
        except KeyboardInterrupt:
            break
        except BaseException as problem:
            result = "fault"
            print(f"{number} {sample.kind} {change}: {problem!r:.300}", file=sys.stderr)
            print("".join(traceback.format_tb(problem.__traceback__)[-2:]), file=sys.stderr)
        grown = peak_bytes() - before
        largest = max(largest, grown)
        if grown > GROWTH:
            result = "growth"
            print(f"{number} {sample.kind} {change}: {grown >> 20} MB more", file=sys.stderr)
        if result not in ("works", "refused") and kept is not None:
            kept.mkdir(parents=True, exist_ok=True)
            (kept / f"{number}.pot").write_bytes(content)
        counts[result] += 1
        by_change[f"{change} {result}"] += 1
    return {
        "files": counts.total(),
        "seed": seed,
        **{name: counts[name] for name in ("refused", "works", "fault", "growth")},
        "by_change": dict(sorted(by_change.items())),
        "largest_growth_bytes": largest,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--memory-mb", type=int, default=2048)
    parser.add_argument("--keep", type=Path, help="a folder for files that are faults")
    args = parser.parse_args()
    torch.set_num_threads(1)
    sys.path.insert(0, str(TESTS))
    limit = psutil.Process().memory_info().vms + (args.memory_mb << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        result = fuzz(args.files, args.seed, Path(folder), args.keep)
    keep("fuzz_pot_files", {**result, "seconds": round(time.perf_counter() - started, 1)})
    return int(bool(result["fault"] or result["growth"]))


if __name__ == "__main__":
    sys.exit(main())
