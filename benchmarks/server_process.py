"""A server process of its own for benchmarks, with the embedded model, another one, or a tiny
random one."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TESTS = Path(__file__).parents[1] / "tests" / "support"


def tiny(folder: Path) -> str:
    """A random Llama that never ends an answer by itself, in a folder."""
    sys.path.insert(0, str(TESTS))
    from live import tiny as made

    model, tokenizer = made()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@contextmanager
def served(model: str, *options: str) -> Iterator[tuple[str, int]]:
    """Address and process id of `infinipot serve MODEL`, ready; it is ended afterwards."""
    command = [sys.executable, "-m", "infinipot.cli", "serve", model, "--port", "0", *options]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert child.stderr is not None
    log: list[str] = []
    try:
        for line in child.stderr:
            log.append(line)
            if "is ready" in line:
                break
        else:
            raise SystemExit(f"the server did not start: {''.join(log)}")
        address = next(line.split()[1] for line in log if "http://" in line)
        drain = threading.Thread(target=log.extend, args=(child.stderr,), daemon=True)
        drain.start()  # a full pipe would stop the server
        while True:
            try:
                urllib.request.urlopen(f"{address}/ready").read()
                break
            except OSError:
                time.sleep(0.05)
        yield address, child.pid
        if child.poll() is not None:
            raise SystemExit(f"the server ended by itself: {child.returncode}")
    finally:
        child.terminate()
        child.wait(30)
        rest = "".join(log)
        if "Traceback" in rest:
            print(rest, file=sys.stderr)
