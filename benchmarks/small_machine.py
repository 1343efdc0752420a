"""One core, or a few, and a hard limit on memory: a long text is read in a pot, and stock transformers
dies at some length.

    python benchmarks/small_machine.py [--limit 700] [--tokens 131072] [--pot-size 512]
    [--distill-to 256] [--chunk-tokens 256] [--kept 8]
    python benchmarks/small_machine.py --model MODEL.gguf --weights int8 [--limit 4000] ...

The limit is `ulimit -d` (RLIMIT_DATA), which Linux enforces on any user: memory that belongs to the
process alone, its weights among it, in use or only reserved. (`ulimit -v` counts the address space
of torch's libraries too, 600 MB before anything is done; a limit on resident memory is not
enforced.) The peak of resident memory, libraries included, is measured beside. The weights are
bfloat16 from a folder as the Hub has them; the embedded model is a GGUF file, whose unpacking takes
more, so it is unpacked into such a folder first, without the limit. With --weights the file is read
as it is, its weights stay quantised, and stock is left out; --dtype is then that of the pot.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from flat_memory import SENTENCE, TOKENS_A_SENTENCE
from machine import keep

QUESTION = "How many ships did the keeper of light number 7 count?"
ANSWER = 16
"""Tokens of an answer."""
STEP = 256
"""How exactly the length is found at which stock dies, in tokens."""
UNPACK = """
import sys, infinipot
for part in infinipot.load(sys.argv[1], dtype="bfloat16", device="cpu"):
    part.save_pretrained(sys.argv[2])
"""
STOCK = """
import sys, torch, transformers
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16, trust_remote_code=False).eval()
ids = torch.arange(int(sys.argv[2]))[None] * 7919 % model.config.vocab_size
with torch.no_grad():
    model.generate(ids, max_new_tokens=int(sys.argv[3]), min_new_tokens=int(sys.argv[3]), do_sample=False)
"""


STACK = 1 << 20
"""Bytes of each thread's stack, which are reserved and so counted; 8 MiB otherwise."""


def confine(megabytes: int, cores: int) -> None:
    """Limits of a child process, set in it before it starts: its memory, and the cores it runs on."""
    resource.setrlimit(resource.RLIMIT_DATA, (megabytes << 20, megabytes << 20))
    resource.setrlimit(resource.RLIMIT_STACK, (STACK, resource.getrlimit(resource.RLIMIT_STACK)[1]))
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])


def confined(command: list[str], args: argparse.Namespace, **streams: Any) -> subprocess.Popen[str]:
    """A process within the limits. glibc is told how much of what is free it may keep."""
    thrift = {
        "MALLOC_ARENA_MAX": "1",
        "MALLOC_TRIM_THRESHOLD_": str(args.kept << 20),
        "MALLOC_MMAP_THRESHOLD_": str(args.kept << 20),
    }
    threads = {"OMP_NUM_THREADS": str(args.cores), "TOKENIZERS_PARALLELISM": "false"}
    return subprocess.Popen(
        command,
        text=True,
        env={**os.environ, **thrift, **threads},
        preexec_fn=lambda: confine(args.limit, args.cores),
        **streams,
    )


def in_a_pot(model: Path, args: argparse.Namespace) -> dict[str, Any]:
    """The command line reads so many tokens, made as they are needed, and answers."""
    command = [
        sys.executable,
        "-m",
        "infinipot.cli",
        "generate",
        str(model),
        "-f",
        "-",
        "-p",
        QUESTION,
        "--max-tokens",
        str(ANSWER),
        "--json",
    ]
    for name in ("pot_size", "distill_to", "chunk_tokens"):
        command += [f"--{name.replace('_', '-')}", str(getattr(args, name))]
    kind = ["--dtype", args.dtype]
    for name in ("weights", "pot_dtype"):
        if getattr(args, name):
            kind += [f"--{name.replace('_', '-')}", getattr(args, name)]
    started = time.perf_counter()
    child = confined(
        [*command, *kind, "--device", "cpu"],
        args,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    for number in range(round(args.tokens / TOKENS_A_SENTENCE)):
        try:
            child.stdin.write(
                SENTENCE.format(
                    1700 + number % 300, number % 97, number * 7919 % 1009, number * 31 % 53
                )
            )
        except BrokenPipeError:
            raise SystemExit(
                f"the command died within {args.limit} MiB; what it said is above"
            ) from None
    child.stdin.close()
    said = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"the command failed within {args.limit} MiB; what it said is above")
    answer = json.loads(said)
    return {
        "tokens": answer["usage"]["prompt_tokens"],
        "answer": answer["text"],
        "read_tps": answer["timings"]["read_tps"],
        "answer_tps": answer["timings"]["answer_tps"],
        "peak_rss_bytes": usage.ru_maxrss * 1024,
        "pot_bytes": answer["pot"]["bytes"],
        "full_cache_bytes": answer["pot"]["full_cache_bytes"],
        "distillations": answer["pot"]["distillations"],
        "cpu_s": round(usage.ru_utime + usage.ru_stime, 1),
        "wall_s": round(time.perf_counter() - started, 1),
    }


def stock_reads(model: Path, tokens: int, args: argparse.Namespace) -> bool:
    """Whether stock transformers reads so many tokens, and answers, within the limit."""
    command = [sys.executable, "-c", STOCK, str(model), str(tokens), str(ANSWER)]
    child = confined(command, args, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    _, problem = child.communicate()
    if child.returncode:
        if problem.strip():
            reason = problem.strip().splitlines()[-1][:160]
        else:
            reason = f"signal {-child.returncode}"
        print(f"stock, {tokens:,} tokens: died ({reason})", file=sys.stderr)
        if (
            "alloc" not in problem.lower()
            and "memory" not in problem.lower()
            and child.returncode > 0
        ):
            raise SystemExit(problem)  # some other fault
    else:
        print(f"stock, {tokens:,} tokens: read", file=sys.stderr)
    return not child.returncode


def death(model: Path, args: argparse.Namespace, most: int) -> tuple[int, int]:
    """The longest text that stock read and the shortest at which it died, STEP apart. Doubles the
    length first."""
    alive = 0
    length = STEP
    while stock_reads(model, length, args):
        alive = length
        length = 2 * length
        if length > most:
            raise SystemExit(
                f"stock reads {alive:,} tokens within {args.limit} MiB: choose a smaller --limit"
            )
    while length - alive > STEP:
        middle = (alive + length) // 2 // STEP * STEP
        if stock_reads(model, middle, args):
            alive = middle
            length = length
        else:
            alive = alive
            length = middle
    return alive, length


def show(pot: dict[str, Any], size: int, lived: int, died: int) -> None:
    """The table, to stderr."""
    peak = f"{pot['peak_rss_bytes'] / 2**20:,.0f} MiB"
    rows = [("", "tokens", "read tok/s", "answer tok/s", "peak resident")]
    rows += [
        (
            f"pot of {size:,}",
            f"{pot['tokens']:,}",
            f"{pot['read_tps']:,.0f}",
            f"{pot['answer_tps']:,.1f}",
            peak,
        )
    ]
    rows += [("stock transformers", f"{lived:,}", "", "", f"dies at {died:,}")]
    for row in rows:
        print(f"{row[0]:20}" + "".join(f"{cell:>16}" for cell in row[1:]), file=sys.stderr)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model",
        default="smollm2",
        help="a folder with bfloat16 weights, or what is to be unpacked into one",
    )
    parser.add_argument("--weights", help="int8 or int4: of the pot, without stock beside it")
    parser.add_argument(
        "--dtype", default="bfloat16", help="of the pot; float32 with --weights only"
    )
    parser.add_argument("--pot-dtype", help="int8: entries in eight bits; with --weights only")
    parser.add_argument("--cores", type=int, default=1, help="more than one with --weights only")
    parser.add_argument("--limit", type=int, default=700, help="MiB")
    parser.add_argument(
        "--kept",
        type=int,
        default=8,
        help="MiB that the C library keeps of what is free; less is slower",
    )
    parser.add_argument("--tokens", type=int, default=131_072)
    parser.add_argument("--pot-size", type=int, default=512)
    parser.add_argument("--distill-to", type=int, default=256)
    parser.add_argument("--chunk-tokens", type=int, default=256)
    args = parser.parse_args()
    sizes = {
        name: getattr(args, name)
        for name in ("limit", "kept", "pot_size", "distill_to", "chunk_tokens")
    }
    if args.weights:
        kind = {"weights": args.weights, "dtype": args.dtype, "pot_dtype": args.pot_dtype}
        result = {"model": Path(args.model).name, **kind, "cores_used": args.cores, **sizes}
        keep("small_machine_weights", {**result, "pot": in_a_pot(Path(args.model), args)})
        sys.exit()
    if args.dtype != "bfloat16" or args.pot_dtype or args.cores != 1:
        parser.error("stock is measured in bfloat16 on one core: other kinds need --weights")
    with tempfile.TemporaryDirectory() as folder:
        model = Path(args.model)
        if not model.is_dir():
            model = Path(folder)
            subprocess.run(
                [sys.executable, "-c", UNPACK, args.model, folder], check=True, capture_output=True
            )
        lived, died = death(model, args, max(args.tokens, 1 << 17))
        pot = in_a_pot(model, args)
    show(pot, args.pot_size, lived, died)
    stock = {"reads": lived, "dies": died}
    keep(
        "small_machine",
        {
            "model": Path(args.model).name,
            "dtype": args.dtype,
            "cores_used": 1,
            **sizes,
            "pot": pot,
            "stock": stock,
        },
    )
