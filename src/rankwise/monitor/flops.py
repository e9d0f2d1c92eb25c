"""Floating-point operations of a training: counted once by torch, so that a device's use can be told from its time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

_FORWARD_AND_BACKWARD = 3   # a backward has two products for each of the forward: Chowdhery et al. 2022, appendix B
_PEAKS = Path(__file__).parent / "peaks.json"


class Flops:
    """Counts what the first training forward of each watched module takes, on a device whose use is told from it."""

    def __init__(self, device: torch.device) -> None:
        self._counts = device.type == "cuda"
        self._is_counting = False
        self._forward_flops = 0
        self._rows: int | None = None

    def watch(self, module: nn.Module) -> None:
        """Count the next forward in which gradients are wanted. What torch compiled is left alone."""
        if not self._counts or hasattr(module, "_orig_mod"):
            return
        from torch.utils.flop_counter import FlopCounterMode
        mode: Any = FlopCounterMode(display=False)
        active = False

        def begin(_: Any, inputs: Any) -> None:
            nonlocal active
            if torch.is_grad_enabled() and not self._is_counting:
                self._is_counting = active = True
                mode.__enter__()

        def end(*_: Any) -> None:
            nonlocal active
            if active:
                mode.__exit__(None, None, None)
                self._is_counting = active = False
                self._forward_flops += mode.get_total_flops()
                before.remove()
                after.remove()

        before = module.register_forward_pre_hook(begin)
        after = module.register_forward_hook(end, always_call=True)

    def began_with(self, rows: int) -> None:
        """The first micro-batch has so many rows on this rank: what is counted is for these."""
        if self._rows is None and rows:
            self._rows = rows

    def per_second(self, rows: float, seconds: float) -> float | None:
        """Operations a second where a step has `rows` rows; None where nothing was counted."""
        if not self._forward_flops or not self._rows or seconds <= 0:
            return None
        return _FORWARD_AND_BACKWARD * self._forward_flops / self._rows * rows / seconds


def peak_flops(device_name: str) -> float | None:
    """Dense 16-bit operations a second of a GPU, from its data sheet; None where it is not in the table."""
    peaks: dict[str, float] = json.loads(_PEAKS.read_text("utf-8"))["peak_flops"]
    matching = [name for name in peaks if name in device_name]
    return peaks[max(matching, key=len)] if matching else None
