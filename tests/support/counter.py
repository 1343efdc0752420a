"""How many entries a model really attends to."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F


class Counter:
    """The most entries that any softmax over a head's entries ever saw, whatever the pot says of itself."""

    def __init__(self, patch: pytest.MonkeyPatch, sinks: int) -> None:
        self.most = 0
        fused, plain = F.scaled_dot_product_attention, F.softmax

        def counted_fused(query: torch.Tensor, key: torch.Tensor, *args, **kwargs) -> torch.Tensor:
            self.most = max(self.most, key.shape[2])
            return fused(query, key, *args, **kwargs)

        def counted_plain(scores: torch.Tensor, *args, **kwargs) -> torch.Tensor:
            if scores.ndim == 4:  # a router's scores have fewer dimensions
                self.most = max(self.most, scores.shape[-1] - sinks)
            return plain(scores, *args, **kwargs)

        patch.setattr(F, "scaled_dot_product_attention", counted_fused)
        patch.setattr(F, "softmax", counted_plain)
