"""What a server process keeps of memory that it no longer needs."""

from __future__ import annotations

import gc
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from live import live

from infinipot.cache.pot import Pot


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_threads_share_two_heaps(tmp_path: Path) -> None:
    code = (
        "import ctypes, sys, threading; sys.path.insert(0, sys.argv[2])\n"
        "from infinipot.cli.serve import few_heaps\n"
        "few_heaps()\n"
        "held, all_there = [], threading.Barrier(8)\n"
        "threads = [threading.Thread(target=lambda: (held.append(bytes(5000)), all_there.wait())) for _ in range(8)]\n"
        "[thread.start() for thread in threads]; [thread.join() for thread in threads]\n"
        "libc = ctypes.CDLL(None); libc.fopen.restype = ctypes.c_void_p\n"
        "file = ctypes.c_void_p(libc.fopen(sys.argv[1].encode(), b'w')); libc.malloc_info(0, file); libc.fclose(file)\n"
    )
    heaps = []
    for number, told in enumerate(({}, {"MALLOC_ARENA_MAX": "5"})):
        path = tmp_path / str(number)
        environment = {
            name: value for name, value in os.environ.items() if name != "MALLOC_ARENA_MAX"
        } | told
        subprocess.run(
            [sys.executable, "-c", code, str(path), str(Path(__file__).parents[2])],
            env=environment,
            check=True,
        )
        heaps.append(path.read_text().count("<heap nr"))
    assert heaps == [2, 5]


def test_pots_that_leave_memory_are_gone_at_once(tmp_path: Path) -> None:
    """Not when the garbage is collected next: until then a busy server would hold many more than it was told to."""

    def pots() -> int:
        return sum(isinstance(one, Pot) for one in gc.get_objects())

    with live({"max_sessions": 2, "pot_dir": tmp_path}) as here:
        said = {
            name: here.chat(f"I am {name}").choices[0].message.content
            for name in ("Anna", "Ben", "Carl", "Dora")
        }
        gc.collect()
        gc.disable()
        try:
            before = pots()
            for name, answer in said.items():
                assert (
                    here.chat(
                        f"I am {name}", answer, "Who am I?"
                    ).usage.prompt_tokens_details.cached_tokens
                    > 0
                )
            here.wait("infinipot_running", 0)
            assert (
                pots() <= before + 2
            )  # those of one place: conversations that came from disk were there before, too
        finally:
            gc.enable()
