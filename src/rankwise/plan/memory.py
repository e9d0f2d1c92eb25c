"""What a device must hold: parameters, gradients, optimizer state and activations, whole or sharded.

Source of the sharded layouts: Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models
(2020), section 5 for what each device keeps and section 7 for what it sends. FSDP's full sharding is stage 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rankwise.plan.curves import Line, Point, line_through

_GROWTH = 0.01   # of a peak: less is not told from chance


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Which states are cut into as many parts as there are devices.

    `parameter_gathers` counts the all-gathers of parameters in a step; without one, the gradients are all-gathered.
    """

    meaning: str
    shards_optimizer: bool = False
    shards_gradients: bool = False
    shards_parameters: bool = False
    parameter_gathers: int = 0


LAYOUTS = {
    "ddp": Layout(meaning="everything on every device"),
    "zero1": Layout(meaning="optimizer state sharded", shards_optimizer=True, parameter_gathers=1),
    "zero2": Layout(meaning="gradients sharded too", shards_optimizer=True, shards_gradients=True,
                    parameter_gathers=1),
    "zero3": Layout(meaning="parameters sharded too (FSDP)", shards_optimizer=True, shards_gradients=True,
                    shards_parameters=True, parameter_gathers=2),
}


def peak_of(points: Sequence[Point]) -> Line:
    """Peak bytes by rows of a micro-batch: a line, which is level where they grow no more than by chance."""
    line, sizes = line_through(points), [rows for rows, _ in points]
    growth = line.slope * (max(sizes) - min(sizes)) / line.at(max(sizes))
    return line if growth > max(_GROWTH, 2 * line.error) else Line(fixed=max(value for _, value in points), slope=0.0)


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of a training on one device.

    `peak` is the measured peak over the rows of a micro-batch: its slope is what a row's activations take, and what its
    fixed part has beyond the states is the process's own: libraries, data, and on a CPU the interpreter.
    """

    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    buffer_bytes: int
    peak: Line
    capacity_bytes: int | None = None

    @property
    def row_bytes(self) -> float:
        return self.peak.slope

    @property
    def other_bytes(self) -> float:
        """What is neither a state of the training nor grows with the rows."""
        return max(0.0, self.peak.fixed - self.states_bytes("ddp", 1))

    def states_bytes(self, layout: str, devices: int) -> float:
        """Bytes of parameters, gradients, optimizer state and buffers on each device.

        DDP's buckets are no second copy: gradients are views into them (`gradient_as_bucket_view`).
        """
        kept = LAYOUTS[layout]
        return (self.parameter_bytes / (devices if kept.shards_parameters else 1)
                + self.gradient_bytes / (devices if kept.shards_gradients else 1)
                + self.optimizer_bytes / (devices if kept.shards_optimizer else 1) + self.buffer_bytes)

    def device_bytes(self, layout: str, devices: int, rows: float) -> float:
        """Peak bytes of a device that computes micro-batches of `rows`."""
        return self.states_bytes(layout, devices) + self.other_bytes + self.row_bytes * rows

    def most_rows(self, layout: str, devices: int) -> int | None:
        """The largest micro-batch that fits; 0 where not one row does, None where that is not known.

        It is not known where the capacity is not, or where memory was not seen to grow with the rows.
        """
        if self.capacity_bytes is None or self.row_bytes <= 0:
            return None
        return max(0, int((self.capacity_bytes - self.device_bytes(layout, devices, 0)) / self.row_bytes))

    def wire_bytes(self, layout: str, devices: int) -> float:
        """Bytes that each device sends in a step, and receives: a reduce-scatter of gradients, and all-gathers."""
        gathers = LAYOUTS[layout].parameter_gathers
        passed = self.gradient_bytes + (gathers * self.parameter_bytes if gathers else self.gradient_bytes)
        return (devices - 1) / devices * passed
