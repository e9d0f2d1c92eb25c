"""How far an epoch is, how fast it goes, and what its loss is so far."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence, Sized
from typing import Any

from rankwise.microbatch import MicroBatch


class Progress:
    """One epoch. Batches and samples are global; seconds are those of training, up to the latest step.

    `carried` is what a checkpoint in the middle of the epoch kept, `earlier_seconds` how long the epochs before took.
    """

    def __init__(self, epoch: int = 0, epochs: int = 0, *, carried: Mapping[str, Any] | None = None,
                 earlier_seconds: Sequence[float] = ()) -> None:
        self.epoch, self.epochs = epoch, epochs
        self.batch: int = carried["batch"] if carried else 0
        self._first_batch = self.batch
        self.batches: int | None = None   # unknown before the first batch, and for data without a length
        self._loss: float = carried["loss"] if carried else 0.0
        self._amount: float = carried["amount"] if carried else 0.0
        self._earlier_seconds = earlier_seconds
        self._loader: Sized | None = None
        self._samples = self._samples_before = 0
        self._began_at = self._window_began_at = self._stepped_at = time.perf_counter()

    def expect(self, loader: Sized, micro_batch: MicroBatch) -> None:
        """A micro-batch is about to be trained on; batches are counted on the loader that came first."""
        if not micro_batch.is_first:
            return
        self._samples += micro_batch.global_rows
        if self._loader is None:
            self._loader = loader
            with contextlib.suppress(TypeError):   # a stream has no length
                self.batches = len(loader)
        if loader is self._loader:
            self.batch += 1
            if self.batches is not None and self.batch > self.batches:   # several passes in one epoch
                self.batches = None

    def stepped(self) -> float:
        """Note that a step ended; returns the time, in seconds of a running clock."""
        self._stepped_at = time.perf_counter()
        return self._stepped_at

    def window(self) -> tuple[int, float]:
        """Samples and seconds of the steps since the last call."""
        samples, seconds = self._samples - self._samples_before, self._stepped_at - self._window_began_at
        self._samples_before, self._window_began_at = self._samples, self._stepped_at
        return samples, seconds

    def add_loss(self, total: float, amount: float) -> None:
        """Count in a weighed sum of losses over all ranks, and the weight behind it."""
        self._loss += total
        self._amount += amount

    @property
    def loss(self) -> float | None:
        """Mean over what was counted in so far; None before."""
        return self._loss / self._amount if self._amount > 0 else None

    @property
    def seconds(self) -> float:
        return self._stepped_at - self._began_at

    @property
    def samples_per_second(self) -> float:
        return self._samples / self.seconds if self.seconds > 0 else 0.0

    @property
    def whole_seconds(self) -> float:
        """Since the epoch began, with all that was done in it."""
        return time.perf_counter() - self._began_at

    @property
    def seconds_left(self) -> float | None:
        """Of the whole training: this epoch at its pace, the others as long as the finished ones; None if unknown."""
        done = self.batch - self._first_batch
        if self.batches is None or not done:
            return None
        pace = self.seconds / done
        earlier = self._earlier_seconds
        whole_epoch = sum(earlier) / len(earlier) if earlier else self.batches * pace
        return (self.batches - self.batch) * pace + (self.epochs - self.epoch - 1) * whole_epoch

    def state_dict(self) -> dict[str, Any]:
        return {"batch": self.batch, "loss": self._loss, "amount": self._amount}
