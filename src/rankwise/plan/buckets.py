"""Gradients in buckets, as DistributedDataParallel reduces them while backward goes on.

Source: Li et al., PyTorch Distributed: Experiences on Accelerating Data Parallel Training (2020), section 3.2 and 4.2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

FIRST_BYTES = 1 << 20     # torch.distributed._DEFAULT_FIRST_BUCKET_BYTES
OTHER_BYTES = 25 << 20    # bucket_cap_mb=25


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """Gradients that are reduced at once; `ready` is the share of the backward pass after which all are there."""

    size_bytes: int
    ready: float


@dataclass(frozen=True, kw_only=True)
class Gradient:
    """The gradient of one parameter, there after the share `ready` of the backward pass."""

    size_bytes: int
    ready: float


def buckets(gradients: Sequence[Gradient], *, first_bytes: int = FIRST_BYTES, other_bytes: int = OTHER_BYTES
            ) -> list[Bucket]:
    """The buckets of `gradients`, which are in order of arrival. One is closed when it has reached its limit.

    As torch's compute_bucket_assignment_by_size does it for one dtype on one device.
    """
    found: list[Bucket] = []
    size, ready = 0, 0.0
    for gradient in gradients:
        size, ready = size + gradient.size_bytes, max(ready, gradient.ready)
        if size >= (other_bytes if found else first_bytes):
            found.append(Bucket(size_bytes=size, ready=ready))
            size = 0
    return [*found, Bucket(size_bytes=size, ready=ready)] if size else found


def exposed_seconds(reduced: Sequence[Bucket], backward_seconds: float, all_reduce: Callable[[float], float]) -> float:
    """Seconds for which backward has ended and gradients are still on their way.

    Buckets are reduced one after the other, each when it and those before it are there: the network is busy with one.
    """
    free = 0.0
    for bucket in reduced:
        free = max(free, bucket.ready * backward_seconds) + all_reduce(bucket.size_bytes)
    return max(0.0, free - backward_seconds)
