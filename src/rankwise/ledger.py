"""What this rank spends its steps on: seconds by phase, and bytes for other ranks; closed into a book an interval.

Every moment belongs to one phase, so the phases of a step add up to its time. On a CPU they are the host's seconds. On
CUDA the host runs ahead of the device, so each change of phase puts an event into the device's stream; the time between
events is read an interval later, when the device is long past them, and no step waits for it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch

from rankwise.stepparts import PARTS

PHASES = (*PARTS, "outside")
DATA, FORWARD, BACKWARD, COMMUNICATION, OPTIMIZER, OTHER, OUTSIDE = range(len(PHASES))
"""By number. COMMUNICATION is what a rank waits for, not what is hidden behind its backward; OTHER is the loop's own
code after an update, OUTSIDE what is done between the passes over the training data, such as an evaluation."""


@dataclass(frozen=True)
class Book:
    """What an interval was spent on."""

    seconds: Callable[[], Sequence[float]]
    """By phase. On CUDA it waits for the device to pass the end of the interval."""
    sent_bytes: float
    communication_seconds: float | None
    """What the gradients of one step of the interval were on their way, hidden time included; None: not measured."""


TOTAL_FROM = "torch's DDP log"
"""What tells the whole time of the communication, where it is measured."""


class Ledger:
    """The books of one rank. The training's own thread changes phases; any thread may send."""

    clock = "host"

    def __init__(self) -> None:
        self.phase = OUTSIDE
        self._thread = threading.get_ident()
        self._sent_bytes: list[float] = []   # appended to, so that no thread loses another's
        self._communication_seconds: float | None = None
        self._steps_until_sample = 1   # not the first step, in which much is made
        self._begin()

    @staticmethod
    def of(device: torch.device) -> Ledger:
        """The ledger for a rank on this device."""
        return DeviceLedger() if device.type == "cuda" else Ledger()

    def _begin(self) -> None:
        self._seconds = [0.0] * len(PHASES)
        self._since = perf_counter()

    # Phases

    def enter(self, phase: int) -> int:
        """From now on time goes to `phase`; returns the one before."""
        now, before = perf_counter(), self.phase
        self._seconds[before] += now - self._since
        self._since, self.phase = now, phase
        return before

    @contextlib.contextmanager
    def communicating(self) -> Iterator[None]:
        """A wait for other ranks: time of COMMUNICATION where a step is under way and this is its thread."""
        if self.phase == OUTSIDE or threading.get_ident() != self._thread:
            yield
            return
        before = self.enter(COMMUNICATION)
        try:
            yield
        finally:
            self.enter(before)

    @contextlib.contextmanager
    def tail_of_backward(self, loss: torch.Tensor) -> Iterator[None]:
        """In a backward pass from `loss`, time goes to COMMUNICATION once every gradient is there.

        What the engine calls at the end of a backward it calls in the order in which it was asked to. The hook of the
        loss is the first to ask, before torch's reducer, whose call then waits for the buckets that are under way.
        """
        hook = loss.register_hook(self._at_end_of_backward)  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            hook.remove()

    def _at_end_of_backward(self, _: torch.Tensor) -> None:
        engine: Any = torch.autograd.Variable._execution_engine
        engine.queue_callback(self._communicate)

    def _communicate(self) -> None:
        self.enter(COMMUNICATION)

    # Bytes, and the whole time of the communication

    def sent(self, byte_count: float) -> None:
        """So many bytes go from this rank to others."""
        self._sent_bytes.append(byte_count)

    @property
    def is_sampling(self) -> bool:
        """Whether the whole time of the communication is to be measured in this step: once an interval."""
        return self._steps_until_sample == 0

    def communicated(self, seconds: float) -> None:
        """Some gradients of a sampled step were so long on their way."""
        self._communication_seconds = (self._communication_seconds or 0.0) + seconds

    # Intervals

    def end_step(self) -> None:
        """The weights were updated: what follows is the loop's own."""
        self.enter(OTHER)
        self._steps_until_sample -= 1

    def close(self, *, samples_next: bool = True) -> Book:
        """End the interval, and begin the next, whose first step is sampled unless `samples_next` says no."""
        book = Book(self._take_seconds(), sum(self._sent_bytes), self._communication_seconds)
        self._sent_bytes, self._communication_seconds = [], None
        self._steps_until_sample = 0 if samples_next else -1
        return book

    def _take_seconds(self) -> Callable[[], Sequence[float]]:
        self.enter(self.phase)
        seconds = self._seconds
        self._begin()
        return lambda: seconds


class DeviceLedger(Ledger):
    """On CUDA: seconds of the device's current stream."""

    clock = "CUDA events"

    def _begin(self) -> None:
        self._ended: list[int] = []   # the phase that ends with each event but the first
        self._events = [_event()]

    def enter(self, phase: int) -> int:
        before, self.phase = self.phase, phase
        if not torch.cuda.is_current_stream_capturing():   # a graph plays its events again and again
            self._ended.append(before)
            self._events.append(_event())
        return before

    def _take_seconds(self) -> Callable[[], Sequence[float]]:
        self.enter(self.phase)
        ended, events = self._ended, self._events
        self._begin()

        def seconds() -> Sequence[float]:
            events[-1].synchronize()
            totals = [0.0] * len(PHASES)
            for phase, first, second in zip(ended, events, events[1:], strict=False):
                totals[phase] += first.elapsed_time(second) / 1e3
            return totals
        return seconds


def _event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event
