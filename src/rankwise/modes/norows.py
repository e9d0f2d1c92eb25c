"""A module that is given zero rows, whatever it does with them.

Layers of torch take zero rows, but `x.view(len(x), -1)` has no answer for them, nor has attention under a padding mask.
Where the module cannot go on, it computes one stand-in row, which is cut from its outputs: their gradient is zero, and
every parameter still gets one. Rows are those of the first dimension.
"""

from __future__ import annotations

from typing import Any

import torch

from rankwise.errors import RankwiseError
from rankwise.group import is_transport_error
from rankwise.modes.inplace import InPlace
from rankwise.structure import is_container, map_tensors, members


class StandIn:
    """What BatchNorm must know of a stand-in row: it counts for nothing, and its pass is the second over zero rows."""

    def __init__(self) -> None:
        self.is_computed = False
        self.results: list[torch.Tensor] = []
        """Of the first pass, for the second: what BatchNorm layers gave for zero rows, in order of their calls."""


class TakesNoRows(InPlace):
    """A module that may be called with tensors of zero rows."""

    _stand_in: StandIn

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return super().forward(*args, **kwargs)
        results = self._stand_in.results
        before = len(results)
        try:
            outputs = super().forward(*args, **kwargs)
        except (RuntimeError, ValueError, IndexError) as error:
            if isinstance(error, RankwiseError) or is_transport_error(error) or not _lacks_rows((args, kwargs)):
                raise
            del results[:before]
            args, kwargs = map_tensors(_with_row, (args, kwargs))
            outputs = self._of_stand_in(args, kwargs)
        del results[before:]
        return outputs

    def _of_stand_in(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._stand_in.is_computed = True
        try:
            return map_tensors(_without_row, super().forward(*args, **kwargs))
        finally:
            self._stand_in.is_computed = False


def _lacks_rows(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.ndim > 0 and len(value) == 0
    return is_container(value) and any(map(_lacks_rows, members(value)))


def _with_row(tensor: torch.Tensor) -> torch.Tensor:
    """One row of ones, which are lengths and indices too; of False, which masks nothing in torch's attention."""
    if not _lacks_rows(tensor):
        return tensor
    row = tensor.new_full((1, *tensor.shape[1:]), tensor.dtype != torch.bool)
    return torch.cat([tensor, row])   # where another module made it, that one is in the graph


def _without_row(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[:0] if tensor.ndim > 0 and len(tensor) == 1 else tensor
