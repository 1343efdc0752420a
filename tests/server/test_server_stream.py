"""From the engine's thread to those who wait: in order, and all of a slice at once."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from infinipot.server.errors import APIError
from infinipot.server.events import Done, Piece
from infinipot.server.stream import EventStream, Outbox


def elsewhere(act: Any) -> None:
    thread = threading.Thread(target=act)
    thread.start()
    thread.join()


def test_a_slice_wakes_the_loop_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        loop, post, wakings = asyncio.get_running_loop(), Outbox(), []
        wake = loop.call_soon_threadsafe
        monkeypatch.setattr(
            loop, "call_soon_threadsafe", lambda *args: (wakings.append(args), wake(*args))
        )
        boxes = [EventStream(post) for _ in range(8)]
        answers = [asyncio.create_task(box.whole()) for box in boxes]
        await asyncio.sleep(0)

        def slice_of(*events: Any) -> None:
            for box in boxes:
                for event in events:
                    box.send(event)
            post.deliver()

        elsewhere(lambda: slice_of(Piece("a", []), Piece("b", [])))
        elsewhere(lambda: slice_of(Piece("c", [])))
        elsewhere(lambda: slice_of(Done("stop", {})))
        said = await asyncio.gather(*answers)
        assert {(one.reply.content, one.done.reason) for one in said} == {("abc", "stop")}
        assert len(wakings) == 3
        post.deliver()
        assert len(wakings) == 3  # there was nothing to tell

    asyncio.run(main())


def test_waiting_ends_in_time_and_in_refusals() -> None:
    async def main() -> None:
        post = Outbox()
        box = EventStream(post)
        assert await box.next(0.01) is None
        waiting = asyncio.create_task(box.next())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        box.send(Piece("a", []))
        box.send(APIError(503, "no memory"))
        post.deliver()
        assert await box.next(5) == Piece("a", [])
        with pytest.raises(APIError, match="no memory"):
            await box.next(5)

    asyncio.run(main())
