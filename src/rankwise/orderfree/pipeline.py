"""Sums of many tensors, some at a time; those that are there early are put together while others are computed."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from rankwise.errors import MisuseError
from rankwise.group import Group
from rankwise.orderfree.shardsum import ShardSum

_BUCKET_BYTES = 1 << 23

Tensors = Sequence[torch.Tensor | None]


class Pipeline:
    """Sums of tensors like `like`, over `shards` shards, in buckets of consecutive tensors of one dtype.

    Buckets keep down what is in memory on its way. A sum has the same bits whether its bucket went early or not.
    """

    def __init__(self, group: Group, shards: int, like: Sequence[torch.Tensor]) -> None:
        self.buckets = _buckets(like)
        self._sums = [ShardSum(group, shards, [like[index] for index in bucket]) for bucket in self.buckets]
        self._thread: ThreadPoolExecutor | None = None
        self._early: list[Future[Tensors]] = []

    def clear(self) -> None:
        """Begin anew."""
        for each in self._sums:
            each.clear()

    def add(self, tensors: Tensors) -> None:
        """One shard's tensors, None for those that it lacks."""
        for bucket, whole in zip(self.buckets, self._sums, strict=True):
            whole.add([tensors[index] for index in bucket])

    def send(self, tensors: Tensors) -> None:
        """Go on in a thread with the next bucket, whose tensors of this rank's last shard are these."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="rankwise-exact")
        self._early.append(self._thread.submit(_put_together, self._sums[len(self._early)], tensors))

    def total(self, tensors: Tensors) -> tuple[list[torch.Tensor | None], list[int]]:
        """The sums over all ranks, and which of them have something that is not finite; then begin anew.

        `tensors` are those of this rank's last shard that were not sent yet. Every rank calls it. Raises MisuseError
        for one that comes after its bucket was sent.
        """
        early, self._early = self._early, []
        if any(tensors[index] is not None for bucket in self.buckets[:len(early)] for index in bucket):
            raise MisuseError("A parameter got its gradient twice in one backward pass, in exact mode.",
                              "Its sum over the ranks was under way. Reentrant activation checkpointing does that.",
                              "Use checkpoint(..., use_reentrant=False), or run.backward(loss) and then run.update.")
        sums: list[torch.Tensor | None] = [None] * len(tensors)
        odd = []
        for number, (bucket, whole) in enumerate(zip(self.buckets, self._sums, strict=True)):
            totals = (early[number].result() if number < len(early)
                      else _put_together(whole, [tensors[index] for index in bucket]))
            odd += [bucket[index] for index in whole.odd]
            for index, total in zip(bucket, totals, strict=True):
                sums[index] = total
        return sums, odd

    def close(self) -> None:
        """End the thread; one that still waits for a rank that is lost ends with the group."""
        if self._thread is not None:
            self._thread.shutdown(wait=not self._early, cancel_futures=True)


@torch.no_grad()
def _put_together(whole: ShardSum, tensors: Tensors) -> Tensors:
    whole.add(tensors)
    return whole.total()


def _buckets(like: Sequence[torch.Tensor]) -> list[list[int]]:
    """Consecutive tensors of one dtype, up to some bytes together."""
    buckets: list[list[int]] = []
    held = 0
    for index, tensor in enumerate(like):
        if not buckets or held + tensor.nbytes > _BUCKET_BYTES or tensor.dtype != like[buckets[-1][0]].dtype:
            buckets.append([])
            held = 0
        buckets[-1].append(index)
        held += tensor.nbytes
    return buckets
