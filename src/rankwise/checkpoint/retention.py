"""Which checkpoints are kept: the newest, the best by a metric, or all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rankwise.checkpoint import folder as folders
from rankwise.errors import CheckpointError


@dataclass(frozen=True, kw_only=True)
class Retention:
    """Keep the `last` newest (None: all), and the one with the best value of `metric`."""

    last: int | None = None
    metric: str | None = None
    larger_is_better: bool = False

    def superseded(self, values: Mapping[int, float | None]) -> set[int]:
        """The steps whose checkpoints are no longer needed, of `values`: the metric by step, None where it is unknown.

        The newest is never among them.
        """
        if self.last is None:
            return set()
        kept = set(sorted(values)[-self.last:])
        best = self.best(values)
        return values.keys() - kept - {best}

    def best(self, values: Mapping[int, float | None]) -> int | None:
        """The step with the best value, the first of equals; None where no value is known."""
        known = {step: value if self.larger_is_better else -value
                 for step, value in values.items() if value is not None}
        return min(known, key=lambda step: (-known[step], step)) if known else None

    def apply(self, newest: Path) -> None:
        """Remove what is superseded, now that `newest` is on the disk.

        What lies beyond its step is left alone: the damaged checkpoints that its run has passed over.
        """
        if self.last is None:
            return
        found = folders.steps_of(newest.parent)
        here = next(step for step, folder in found.items() if folder == newest)
        values = {step: self._value(folder) for step, folder in found.items() if step <= here}
        for step in self.superseded(values):
            folders.remove(found[step])

    def _value(self, checkpoint: Path) -> float | None:
        if self.metric is None:
            return None
        try:
            value = folders.unseal(checkpoint)["metrics"].get(self.metric)
        except CheckpointError:
            return None
        return value if isinstance(value, (int, float)) else None
