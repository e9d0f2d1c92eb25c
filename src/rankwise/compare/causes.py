"""Where a layout loses against a perfect division of the work, from the split of its step and that of one device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

COMPUTATION = ("forward", "backward")


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Seconds a step beyond a perfect division, and in what.

    `of` is data, computation, communication, waiting (for slower ranks), optimizer or other.
    """

    of: str
    seconds: float


def losses(ours: Mapping[str, float], alone: Mapping[str, float], parts: int, *, waiting: float = 0.0) -> list[Loss]:
    """The losses of a split, the largest first; what is shorter than a perfect division loses nothing.

    `parts` is by how much the work of one device was divided: the number of devices, and 1 in weak scaling. `waiting`
    is the part of our communication that is no transport.
    """
    def spent(split: Mapping[str, float], of: str) -> float:
        return sum(split[phase] for phase in COMPUTATION) if of == "computation" else split[of]

    found = [Loss(of="communication", seconds=ours["communication"] - waiting), Loss(of="waiting", seconds=waiting),
             *(Loss(of=of, seconds=spent(ours, of) - spent(alone, of) / parts)
               for of in ("computation", "data", "optimizer", "other"))]
    return sorted((each for each in found if each.seconds > 0), key=lambda each: -each.seconds)
