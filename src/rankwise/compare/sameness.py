"""Whether the loss after the last step is that of one device: the same training, as far as one number tells."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

# Sums in another order differ by about a rounding a step, which a training makes grow; what `rankwise verify` calls
# rounding after some tens of steps lies below these. A rate or a batch that is wrong shows in the second digit.
_ROUNDING = {"no": 1e-3, "bf16": 2e-2, "fp16": 5e-3}
_OF_THE_NOISE = 2.0


@dataclass(frozen=True, kw_only=True)
class Sameness:
    """The largest relative difference of the loss from one device's over all rounds, and what is allowed.

    `noise` is how far runs of one device differ from each other: 0 where all that is drawn is seeded.
    """

    difference: float
    allowed: float
    noise: float

    @property
    def is_same(self) -> bool:
        return self.difference <= self.allowed


def judge(ours: Sequence[float | None], theirs: Sequence[float | None], *, amp: str) -> Sameness | None:
    """Compare losses of a layout with `theirs`, those of one device, which should all be equal.

    None where a loss is not known. A loss that is no finite number on one side alone differs without bound.
    """
    found, alone = ([loss for loss in losses if loss is not None] for losses in (ours, theirs))
    if not found or not alone:
        return None
    noise = max(relative(alone[0], each) for each in alone)
    return Sameness(difference=max(relative(one, other) for one in found for other in alone),
                    allowed=max(_ROUNDING[amp], _OF_THE_NOISE * noise if math.isfinite(noise) else 0.0), noise=noise)


def relative(one: float, other: float) -> float:
    """The difference of two losses beside the larger of them; 0 where both are the same, or both no finite numbers."""
    if one == other or not (math.isfinite(one) or math.isfinite(other)):
        return 0.0
    if not (math.isfinite(one) and math.isfinite(other)):
        return math.inf
    return abs(one - other) / max(abs(one), abs(other))
