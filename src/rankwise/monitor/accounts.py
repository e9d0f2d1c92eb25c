"""The accounts of a run: each interval's books of all ranks on their way to the log, and their sum for its end."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import nn

from rankwise import processor
from rankwise.group import Group
from rankwise.microbatch import MicroBatch
from rankwise.monitor import summary
from rankwise.monitor.books import Books, Interval, Reading
from rankwise.monitor.log import Entry
from rankwise.monitor.start import device_name
from rankwise.monitor.usage import Usage


class Accounts:
    """Every rank calls every method at the same step. The first step of a start, in which much is made, stands apart
    and is left out of the sum."""

    def __init__(self, group: Group, devices: int) -> None:
        """`devices` is the number that each rank drives."""
        self._group = group
        self._books = Books(group, devices)
        self._usage = Usage()
        self._before_step = self._closed_step = 0
        self._samples = self._rows = 0

    def begin_after(self, step: int) -> None:
        """The training goes on after this step."""
        self._before_step = self._closed_step = step

    def watch(self, module: nn.Module) -> None:
        """A module is to be trained."""
        self._books.flops.watch(module)

    def expect(self, micro_batch: MicroBatch) -> None:
        """A micro-batch is about to be trained on."""
        if micro_batch.is_first:
            self._samples += micro_batch.global_rows
        self._rows += micro_batch.rows
        self._books.flops.began_with(micro_batch.rows)

    def after_step(self, step: int, epoch: int) -> list[Entry]:
        return self.close(step, epoch) if step == self._before_step + 1 else []

    def close(self, step: int, epoch: int) -> list[Entry]:
        """End the interval with this step; returns what is to be logged, an interval later."""
        if step == self._closed_step:
            return []
        interval = Interval(step, epoch, step - self._closed_step, self._samples, self._rows)
        self._closed_step, self._samples, self._rows = step, 0, 0
        return list(map(self._entry, self._books.close(interval)))

    def settle(self) -> list[Entry]:
        """What is left of earlier intervals."""
        return list(map(self._entry, self._books.close(None)))

    def _entry(self, reading: Reading) -> Entry:
        return Entry(reading.interval.step, reading.interval.epoch, partial(self._values, reading), record="split")

    def _values(self, reading: Reading) -> Mapping[str, Any]:
        split = reading.split()
        if split.step != self._before_step + 1:
            self._usage.add(split)
        return split.as_values()

    def lines(self) -> list[str]:
        """Five lines for a person; none where no step but the first was made."""
        if not self._usage.steps:
            return []
        on_cpu = self._group.device.type == "cpu"
        return summary.lines(self._usage, device_name=device_name(self._group.device),
                             has_shared_cores=on_cpu and self._group.world.local_size > processor.cores())
