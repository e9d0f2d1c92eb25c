"""How far two runs of the same training may part: what rounding alone can do.

A sum over n rows in another grouping differs by about sqrt(n) roundings, relative to its size (Higham, Accuracy and
Stability of Numerical Algorithms, 2002, section 4.2), and a training adds such a difference in each step. How a
training makes small differences grow is its own affair (one ReLU that flips, an Adam that divides by a gradient near
zero), so it is measured: the reference is run once more from weights that are moved by one rounding each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_ROUNDINGS = 8.0     # of one sum of one row; sums within layers come on top of that over rows
_FEWEST_ROWS = 64
_OF_THE_MEASURED = 16.0   # a layout rounds in each step, the moved weights were rounded once
_LIMIT = 0.05             # what differs by more is not called the same, however sensitive the training is


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """The relative difference that is allowed after each step. `fixed` overrides the rest; 0 means the same bits.

    A tensor that rounding alone moves by more than its own size tells nothing, and is allowed anything: the bias before
    a normalisation, whose true gradient is zero, does that under Adam.
    """

    epsilon: float
    rows: int
    fixed: float | None = None
    measured: Sequence[float] = ()   # of the nudged reference: largest difference of loss and gradient up to each step
    tensors: Mapping[str, float] = field(default_factory=dict)   # and of each tensor at the end

    def at(self, step: int) -> float:
        """What is allowed for the loss and the gradient in step `step`, counted from 1."""
        if self.fixed is not None:
            return self.fixed
        seen = self.measured[:step]
        return max(self._rounding(step), min(_LIMIT, _OF_THE_MEASURED * seen[-1] if seen else 0.0))

    def of(self, tensor: str, step: int) -> float:
        """What is allowed for a tensor after step `step`."""
        if self.fixed is not None:
            return self.fixed
        return max(self._rounding(step), _OF_THE_MEASURED * self.tensors.get(tensor, 0.0))

    def _rounding(self, step: int) -> float:
        return min(_ROUNDINGS * self.epsilon * math.sqrt(max(self.rows, _FEWEST_ROWS)) * step, _LIMIT)
