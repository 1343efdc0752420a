"""Converts a document in a process of its own, which has an end whatever the document holds.

    python -m infinipot.text.converter '["pdf", "report.pdf", 2147483648, 120]' < report.pdf

The arguments, as JSON: kind and name of the document, most bytes of memory, most seconds of the
processor. Exit status 3: the document is refused, stderr says why.
"""

from __future__ import annotations

import json
import logging
import sys

from infinipot.text.documents import document_text

REFUSED = 3


def limit(memory: int, seconds: int) -> None:
    """Let the system end this process if it takes more."""
    try:
        import resource
    except ModuleNotFoundError:  # Windows: whoever started the process ends it
        return
    for kind, most in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_CPU, seconds)):
        hard = resource.getrlimit(kind)[1]
        if hard != resource.RLIM_INFINITY:
            most = min(most, hard)
        resource.setrlimit(kind, (most, hard))


def main() -> int:
    kind, name, memory, seconds = json.loads(sys.argv[1])
    logging.disable(logging.CRITICAL)  # converters tell of damage that they pass over
    limit(memory, seconds)
    try:
        for piece in document_text(kind, sys.stdin.buffer, name):
            sys.stdout.buffer.write(piece.encode("utf-8", "replace"))
        sys.stdout.buffer.flush()
    except ValueError as problem:
        sys.stderr.buffer.write(str(problem).encode("utf-8", "replace"))
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main())
