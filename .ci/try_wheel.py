"""Does an installed InfiniPot work? Version, an answer, a server; run by the Python of the
environment it is installed in."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

COMMAND = str(Path(sys.executable).parent / "infinipot")


def said(*args: str) -> str:
    return subprocess.run([COMMAND, *args], check=True, capture_output=True, text=True).stdout


def served() -> str:
    """What the server answers; its page must be there, too."""
    command = [COMMAND, "serve", "smollm2", "--port", "0", "--pot-size", "256"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    try:
        address = next(line.split()[1] for line in server.stderr if "http://" in line)
        assert any("is ready" in line for line in server.stderr)
        assert b"InfiniPot" in urllib.request.urlopen(f"{address}/page/index.html").read()
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{address}/ready").read()
                break
            except OSError:
                time.sleep(0.1)
        body = {
            "model": "smollm2",
            "messages": [{"role": "user", "content": "What is the capital of France?"}],
            "max_tokens": 12,
        }
        request = urllib.request.Request(
            f"{address}/v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        return str(json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"])
    finally:
        server.terminate()
        server.wait(20)


if __name__ == "__main__":
    print(said("--version").strip())
    for answer in (
        said("generate", "smollm2", "-p", "What is the capital of France?", "--max-tokens", "12"),
        served(),
    ):
        print(answer.strip())
        assert "Paris" in answer
