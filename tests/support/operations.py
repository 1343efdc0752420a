"""What torch does, counted."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

WAITS = {"_local_scalar_dense", "item", "nonzero", "is_nonzero", "masked_select"}
"""Operations for which the host waits for the device."""


class Operations(TorchDispatchMode):
    """Counts what torch does."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()
        self.rows = 0
        """Most rows that were sorted."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.names[name] += 1
        if name in ("sort", "topk"):
            self.rows = max(self.rows, len(args[0]))
        return func(*args, **(kwargs or {}))
