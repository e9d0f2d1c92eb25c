"""Global batches, cut for this rank: the object that `run.loader` returns and a training loop iterates over."""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from rankwise.data import augment as augmentation
from rankwise.data.placement import to_device
from rankwise.data.plan import Turn
from rankwise.data.source import source_of, whole_number
from rankwise.errors import CheckpointError, UsageError
from rankwise.group import Group
from rankwise.keys import mix
from rankwise.ledger import DATA
from rankwise.microbatch import MicroBatch
from rankwise.pulse import PULSE
from rankwise.structure import with_first


class Loader:
    """Batches of a data set for one rank, on its device: each turn is this rank's part of a global batch.

    `dataset` is one of
      - data in memory: a tensor or numpy array, a tuple or mapping of them (one row a sample), a TensorDataset,
        `rankwise.datasets` or `Arrays`, a Subset of these. Batches are gathered whole; `num_workers` is not needed;
      - any data set with `__getitem__` and `__len__`, also a plain list of samples. Before a sample is read, `random`,
        `numpy.random` and torch are seeded by (seed, pass, index): transforms that draw from them give the same on any
        number of ranks and workers;
      - a stream (IterableDataset, or any object with `__iter__`). Each rank and worker reads all of it, and keeps its
        slice of each global batch; with `sharded=True` it already gives each rank and worker a part of its own.

    `batch_size` is the global batch: the samples of one step over all devices together. The options:
      - `shuffle`: another order in each pass, from (seed, pass), the same for any number of ranks;
      - `weights`: n draws with replacement in proportion to these numbers, one a sample;
      - `batch_sampler`: the global batches themselves, an iterable of lists of indices, in place of `batch_size`;
      - `drop_last`: leave out a last batch that is smaller;
      - `collate_fn`: makes a batch of a list of samples; torch's default_collate unless given;
      - `num_workers`: processes that read samples beside the training;
      - `micro_batch`: most samples a device computes at once; the loop body then runs several times a global batch;
      - `augment`: see `rankwise.augment`; applied on the device to the first element of each batch.

    Every rank's loop body runs equally often. A rank with less to do gets micro-batches of zero rows; where a collated
    batch holds objects that cannot be cut, one row stays in it that counts for nothing.

    Raises UsageError for options that cannot be used together or at all, and DataError where ranks hold different data.
    """

    def __init__(self, dataset: Any, batch_size: int | None = None, *, group: Group, seed: int,
                 on_micro_batch: Callable[[Loader, MicroBatch | None], None],
                 on_turn_end: Callable[[Loader], None] = lambda _: None, replicas: int = 1, number: int = 0,
                 shuffle: bool = False, drop_last: bool = False, weights: Any = None,
                 batch_sampler: Iterable[Sequence[int]] | None = None,
                 collate_fn: Callable[[list[Any]], Any] | None = None, num_workers: int = 0,
                 micro_batch: int | None = None, augment: Sequence[augmentation.Augmentation] = (),
                 sharded: bool = False, shards: int | None = None) -> None:
        """`number` tells the loaders of one run apart, so that two of them do not share an order; `shards` is the
        number of virtual shards in exact mode."""
        self.dataset, self.batch_size, self.passes = dataset, batch_size, 0
        self._augment = tuple(augment)
        if not all(map(callable, self._augment)):
            raise UsageError(f"augment is {augment!r}.", "It is a list of callables (images, keys) -> images.",
                             "Give, for example, augment=[rw.augment.Crop(4), rw.augment.Flip()].")
        if micro_batch is not None:
            micro_batch = whole_number("micro_batch", micro_batch, least=1) * replicas
        self._device, self._ledger = group.device, group.ledger
        self._on_micro_batch, self._on_turn_end = on_micro_batch, on_turn_end
        self._source, self._finish = source_of(
            dataset, batch_size, group=group, seed=mix(seed, number), bound=micro_batch, shards=shards,
            shuffle=shuffle, drop_last=drop_last, weights=weights, batch_sampler=batch_sampler, collate=collate_fn,
            num_workers=whole_number("num_workers", num_workers, least=0), sharded=sharded)
        self._batch = 0
        self._starts, self._stops = array("q"), array("q")
        self._open: weakref.ref[Generator[Any, None, None]] | None = None

    def __len__(self) -> int:
        """Global batches in a pass; for a stream without a length a TypeError, as `len` raises it."""
        return len(self._source)

    def __iter__(self) -> Iterator[Any]:
        """A pass over the data, from where the last `load_state_dict` says; ends the pass before, if it is not over."""
        unfinished = self._open and self._open()
        if unfinished:
            unfinished.close()
        batches = self._batches()
        next(batches)
        self._open = weakref.ref(batches)
        return batches

    def _batches(self) -> Generator[Any, None, None]:
        del self._starts[:], self._stops[:]
        try:
            yield None   # begun: it counts even where no batch is asked for, as zip does after a shorter one
            self._begin_wait()
            for turn, batch in self._source.turns(self.passes, self._batch):
                batch = self._finish(batch)
                if self._augment:
                    batch = with_first(partial(self._augmented, turn=turn), batch)
                self._starts.append(turn.start)
                self._stops.append(turn.start + turn.share.rows)
                self._batch = turn.batch + 1 if turn.share.is_last else turn.batch
                self._on_micro_batch(self, turn.share)
                PULSE.beat()
                yield batch
                self._on_turn_end(self)
                self._begin_wait()
        finally:
            self.passes += 1
            self._batch = 0
            self._on_micro_batch(self, None)

    def _begin_wait(self) -> None:
        if torch.is_grad_enabled():   # else it is no training
            self._ledger.enter(DATA)

    def _augmented(self, images: Any, turn: Turn) -> Any:
        if not isinstance(images, torch.Tensor) or len(images) not in (turn.share.rows, len(turn.keys)):
            raise UsageError(f"augment was given a batch whose first element is a {type(images).__name__}"
                             f"{list(getattr(images, 'shape', ''))}.",
                             f"It is applied there, to a tensor with one row for each of {turn.share.rows} samples.",
                             "Let the data set give the images first, or augment in the data set.")
        keys = torch.from_numpy(turn.keys[: len(images)].view(np.int64))
        return augmentation.apply(self._augment, images, to_device(keys, self._device))

    def positions(self, rows: int) -> torch.Tensor | None:
        """Where in the pass `rows` rows of this rank stand, int64 [rows].

        They are the rows of the micro-batch in hand, or, where that has another number of them, all that this pass
        handed out so far; None where neither has as many.
        """
        spans = list(zip(self._starts[-1:], self._stops[-1:], strict=True))
        if sum(stop - start for start, stop in spans) != rows:
            spans = list(zip(self._starts, self._stops, strict=True))
        if sum(stop - start for start, stop in spans) != rows:
            return None
        return torch.cat([torch.arange(0), *(torch.arange(start, stop) for start, stop in spans)])

    def state_dict(self) -> dict[str, Any]:
        """Passes done and the next global batch of this one; true between passes, and in the loop body after the last
        micro-batch of a global batch."""
        return {"passes": self.passes, "batch": self._batch,
                "batch_size": self.batch_size, "samples": self._source.samples}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next pass begin there. Raises CheckpointError in the middle of a pass over other batches."""
        for name, now in (("batch_size", self.batch_size), ("samples", self._source.samples)):
            if state["batch"] and state[name] != now:
                raise CheckpointError(f"The checkpoint lies in the middle of a pass with {name} {state[name]}; "
                                      f"the loader has {now}.", "Samples would be left out or come twice.",
                                      "Use the same data and batch_size until the end of the pass, or start from a "
                                      "checkpoint between passes.")
        self.passes, self._batch = state["passes"], state["batch"]
