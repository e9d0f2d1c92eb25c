"""Mixed precision: a prepared module computes under autocast and answers in float32."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from rankwise.modes.inplace import InPlace, put_in_front
from rankwise.structure import map_tensors

_LOW_PRECISION = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Autocast(InPlace):
    """A forward under autocast; floating outputs come back as float32, so that a loss is computed in float32."""

    _autocast_device: str
    _autocast_dtype: torch.dtype

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast(self._autocast_device, self._autocast_dtype):
            outputs = super().forward(*args, **kwargs)
        return map_tensors(_widen, outputs)


def autocast_forward(module: nn.Module, device: torch.device, amp: str) -> None:
    """Let `module` compute in `amp` (bf16 or fp16) from now on."""
    put_in_front(Autocast, module, _autocast_device=device.type, _autocast_dtype=_LOW_PRECISION[amp])


def _widen(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
