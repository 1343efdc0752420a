"""CUDA graphs, on one GPU or over several."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor


class Recording:
    """A CUDA graph of `run`, which returns tensors. Replays return copies, because the next replay
    overwrites the outputs.

    streams: one for each GPU of the model, the first of the GPU with the inputs. pools: the memory of
    each of the others. how: options of `torch.cuda.graph`.
    """

    def __init__(
        self,
        run: Callable[[], Sequence[Tensor]],
        streams: Sequence[torch.cuda.Stream],
        pools: Sequence[torch.cuda.MemPool] = (),
        **how: Any,
    ) -> None:
        self.devices = [stream.device for stream in streams]
        first, *others = streams
        with torch.cuda.device(first.device):
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, stream=first, **how), beside(first, others, pools):
                self.outputs = run()

    def replay(self) -> tuple[Tensor, ...]:
        """The outputs for the present inputs."""
        first, *others = map(torch.cuda.current_stream, self.devices)
        for stream in others:
            first.wait_stream(stream)
        self.graph.replay()
        for stream in others:
            stream.wait_stream(first)
        return tuple(x.clone() for x in self.outputs)


@contextmanager
def beside(
    first: torch.cuda.Stream,
    others: Sequence[torch.cuda.Stream],
    pools: Sequence[torch.cuda.MemPool],
) -> Iterator[None]:
    """Let the streams of other GPUs take part in what `first` records. Memory that is allocated there
    belongs to the recording."""
    with ExitStack() as stack:
        for stream, pool in zip(others, pools, strict=True):
            stream.wait_stream(first)
            stack.enter_context(torch.cuda.stream(stream))
            stack.enter_context(torch.cuda.use_mem_pool(pool, stream.device))
        stack.enter_context(torch.cuda.device(first.device))
        yield
        for stream in others:
            first.wait_stream(stream)


Record = Callable[[Callable[[], Any]], Recording]
"""Makes a recording of a function."""
