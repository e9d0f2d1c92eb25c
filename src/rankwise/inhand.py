"""What a loop body holds: the micro-batch of each loader that is in the loop."""

from __future__ import annotations

from typing import Generic, TypeVar

from rankwise.errors import MisuseError
from rankwise.microbatch import MicroBatch

LoaderT = TypeVar("LoaderT")


class InHand(Generic[LoaderT]):
    """The loaders whose pass is under way, each with the micro-batch that it handed out last."""

    def __init__(self) -> None:
        self._held: dict[LoaderT, MicroBatch] = {}
        self.latest: LoaderT | None = None

    def take(self, loader: LoaderT, micro_batch: MicroBatch) -> None:
        self._held[loader] = micro_batch
        self.latest = loader

    def put_down(self, loader: LoaderT) -> None:
        self._held.pop(loader, None)

    def __contains__(self, loader: LoaderT) -> bool:
        return loader in self._held

    def __bool__(self) -> bool:
        return bool(self._held)

    def loaders(self) -> list[LoaderT]:
        return list(self._held)

    def ends_step(self) -> bool:
        """Whether the micro-batches are the last ones of their global batches; true without a loader.

        Raises MisuseError where some are and some are not.
        """
        ends = {share.is_last for share in self._held.values()}
        if len(ends) > 1:
            raise MisuseError(f"{len(self._held)} loaders are in one loop, and their batches do not end together.",
                              "A step ends when each loader has handed out its whole global batch.",
                              "Give them batch sizes and micro_batch of one ratio.")
        return False not in ends

    def share(self, loader: LoaderT | None, world_size: int) -> MicroBatch:
        """What a loss from `loader` (None: from all of them) was computed on; without a loader ranks count the same.

        Raises MisuseError for a loader that is not in the loop, and where it cannot be told which one is meant.
        """
        if loader is not None:
            if loader not in self._held:
                raise MisuseError("run.backward was given a loader that has no batch in hand.",
                                  "It must be one that the loop iterates over.", "Give the loop's own loader.")
            return self._held[loader]
        if not self._held:
            return MicroBatch(rows=1, global_rows=world_size)
        first, *others = self._held.values()
        if any(other != first for other in others):
            raise MisuseError(f"{len(self._held)} loaders are in one loop, and their batches differ in size.",
                              "A loss is weighed by the rows that it was computed from.",
                              "Call run.backward(loss, loader=...) for each loss, then run.update(optimizer).")
        return first
