"""Kernels are launched with as many stages of their pipeline as the GPU has shared memory for."""

from __future__ import annotations

from typing import Any

import pytest

from infinipot.kernels import launch


class OutOfResources(Exception):
    """As Triton's."""


class Kernel:
    """A kernel that needs `size` bytes for each stage, on a card with 100."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.tried: list[int] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def start(*args: Any, num_stages: int, num_warps: int) -> None:
            self.tried.append(num_stages)
            if num_stages * self.size > 100:
                raise OutOfResources("shared memory")
            assert (grid, args, num_warps) == ((2, 3), ("x",), 8)

        return start


@pytest.mark.parametrize(("size", "tried"), [(30, [3]), (50, [3, 2]), (100, [3, 2, 1])])
def test_fewer_stages_where_memory_is_short(size: int, tried: list[int]) -> None:
    kernel = Kernel(size)
    launch.run(kernel, (2, 3), ("x",), "form", num_warps=8)
    assert kernel.tried == tried
    launch.run(kernel, (2, 3), ("x",), "form", num_warps=8)
    assert kernel.tried == [*tried, tried[-1]], "what fits is remembered"


def test_what_never_fits_is_said() -> None:
    kernel = Kernel(101)
    with pytest.raises(OutOfResources):
        launch.run(kernel, (2, 3), ("x",), "form", num_warps=8)
    assert kernel.tried == [3, 2, 1]
