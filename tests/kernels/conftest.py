"""Triton 3.6's interpreter, corrected.

It holds a scalar as an array of one element, which numpy 2.4 no longer turns into an int, and it multiplies the bits of bfloat16.
"""

from __future__ import annotations

import os
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    if os.environ.get("TRITON_INTERPRET") != "1":
        return
    module = pytest.importorskip("triton.runtime.interpreter")
    patch, dot = module._patch_lang_tensor, module.InterpreterBuilder.create_dot

    def patch_with_index(tensor: type, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    def widened(x: Any) -> Any:
        if x.dtype.scalar != module.tl.bfloat16:
            return x
        bits = x.data.view(module.np.uint16).astype(module.np.uint32) << 16
        return module.TensorHandle(bits.view(module.np.float32), module.tl.float32)

    def dot_of_values(self: Any, a: Any, b: Any, *more: Any) -> Any:
        return dot(self, widened(a), widened(b), *more)

    monkeypatch.setattr(module, "_patch_lang_tensor", patch_with_index)
    monkeypatch.setattr(module.InterpreterBuilder, "create_dot", dot_of_values)
