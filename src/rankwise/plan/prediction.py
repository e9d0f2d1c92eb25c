"""The step of a training on devices that are not here: computation, what of communication is not hidden, and memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rankwise.plan.buckets import buckets, exposed_seconds
from rankwise.plan.collectives import Cluster, all_reduce_seconds, chosen
from rankwise.plan.computation import Computation
from rankwise.plan.links import Link
from rankwise.plan.memory import LAYOUTS, Memory

_MOST_OFF = 0.9   # a share, so that the fastest that may be still takes time
_WORTH_IT = 0.5   # of what the devices that are added would give if nothing were lost


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a prediction stands on: one training, as measured on one device, and the cluster that it is planned for."""

    computation: Computation
    memory: Memory
    global_batch: int
    devices_per_node: int
    inside: Link
    between: Link
    backend: str

    def cluster(self, devices: int) -> Cluster:
        return Cluster(devices=devices, devices_per_node=self.devices_per_node, inside=self.inside,
                       between=self.between, backend=self.backend)

    def off_by(self, direction: int, rows: float) -> Plan:
        """The same where all is as slow (1) or as fast (-1) as its error allows with micro-batches of `rows`."""
        share = min(_MOST_OFF, self.computation.error(rows))
        return replace(self, computation=self.computation.slower_by(direction * share),
                       inside=self.inside.slower_by(direction * self.inside.spread),
                       between=self.between.slower_by(direction * self.between.spread))


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step of mode ddp on `devices` devices, as predicted.

    `rows` is the largest slice, computed in `micro_batches` turns. `step_seconds` = `computation_seconds` +
    `exposed_seconds`, and lies between `least_seconds` and `most_seconds`. `communication_seconds` counts all of it,
    hidden behind backward or not. Bytes, and the largest micro-batch that fits, are by layout of the states.
    """

    devices: int
    nodes: int
    rows: int
    micro_batches: int
    step_seconds: float
    least_seconds: float
    most_seconds: float
    computation_seconds: float
    communication_seconds: float
    exposed_seconds: float
    samples_per_second: float
    speed_up: float
    algorithm: str
    is_extrapolated: bool
    device_bytes: dict[str, float]
    wire_bytes: dict[str, float]
    most_rows: dict[str, int | None]

    @property
    def efficiency(self) -> float:
        return self.speed_up / self.devices


@dataclass(frozen=True, kw_only=True)
class _Times:
    """Seconds of one step."""

    rows: int
    micro_batches: int
    computation: float
    communication: float
    exposed: float

    @property
    def step(self) -> float:
        return self.computation + self.exposed


def predict(plan: Plan, devices: int) -> Step:
    """The step on `devices` devices, with the error bar of the measurements and of the links."""
    times = _times(plan, devices)
    cluster = plan.cluster(devices)
    size = times.rows / times.micro_batches
    return Step(
        devices=devices, nodes=cluster.nodes, rows=times.rows, micro_batches=times.micro_batches,
        step_seconds=times.step, least_seconds=_times(plan.off_by(-1, size), devices).step,
        most_seconds=_times(plan.off_by(1, size), devices).step, computation_seconds=times.computation,
        communication_seconds=times.communication, exposed_seconds=times.exposed,
        samples_per_second=plan.global_batch / times.step, speed_up=_times(plan, 1).step / times.step,
        algorithm=chosen(plan.memory.gradient_bytes, cluster) if devices > 1 else "",
        is_extrapolated=not plan.computation.micro_batch_seconds.covers(size),
        device_bytes={name: plan.memory.device_bytes(name, devices, size) for name in LAYOUTS},
        wire_bytes={name: plan.memory.wire_bytes(name, devices) for name in LAYOUTS},
        most_rows={name: plan.memory.most_rows(name, devices) for name in LAYOUTS})


def _times(plan: Plan, devices: int) -> _Times:
    """A slice is computed in as few equal micro-batches as fit; gradients are reduced in the last one's backward."""
    rows = -(-plan.global_batch // devices)   # the slices differ by one row, and the largest takes longest
    turns = micro_batches(plan.memory, devices, rows)
    size = rows / turns
    all_reduce = _all_reduce(plan.cluster(devices))
    reduced = buckets(plan.computation.gradients)
    statistics = all_reduce(plan.memory.buffer_bytes)   # after the update, in one piece
    return _Times(
        rows=rows, micro_batches=turns,
        computation=turns * plan.computation.micro_batch_seconds.at(size) + plan.computation.update_seconds,
        communication=sum(all_reduce(bucket.size_bytes) for bucket in reduced) + statistics,
        exposed=statistics + exposed_seconds(reduced, plan.computation.backward_seconds.at(size), all_reduce))


def _all_reduce(cluster: Cluster) -> Callable[[float], float]:
    return lambda size_bytes: all_reduce_seconds(size_bytes, cluster)


def micro_batches(memory: Memory, devices: int, rows: int) -> int:
    """Turns in which a device computes `rows`, so that each fits its memory; where nothing fits, a row a turn."""
    most = memory.most_rows("ddp", devices)
    return 1 if most is None else -(-rows // max(1, most))


def least_paying(plan: Plan) -> Step | None:
    """The number of devices, doubled again and again, from which another doubling does not pay; None where all pay.

    It does not pay where the added devices bring less than half of what as many brought before: where from n to 2n
    devices the samples a second grow by less than 50 %. No device has less than a row.
    """
    steps = [predict(plan, devices) for devices in _doublings(plan.global_batch)]
    return next((step for step, twice in itertools.pairwise(steps)
                 if twice.samples_per_second / step.samples_per_second - 1 < _WORTH_IT), None)


def _doublings(largest: int) -> Sequence[int]:
    return [2 ** power for power in range(largest.bit_length())]
