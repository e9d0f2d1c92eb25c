"""From the options of a loader to what it reads from: kind of data set, sampling, and what does not go together."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sized
from functools import partial
from typing import Any, Protocol

from torch.utils.data import DataLoader, IterableDataset, default_collate

from rankwise.data.arrays import in_memory
from rankwise.data.collation import Collate
from rankwise.data.indexed import Indexed, from_memory
from rankwise.data.partition import Part, parts_of, shards_of
from rankwise.data.placement import to_device
from rankwise.data.plan import Turn
from rankwise.data.samples import SampleReader
from rankwise.data.sampling import EvenSampling, ListedSampling, Sampling
from rankwise.data.stream import Stream
from rankwise.data.stream_reader import Request, Sharded, StreamReader, Whole
from rankwise.data.workers import Workers
from rankwise.errors import DataError, UsageError
from rankwise.group import Group


class Source(Protocol):
    """Gives the turns of a pass with their batches."""

    @property
    def samples(self) -> int | None:
        """Samples in the data set, where that is known."""
        ...

    def __len__(self) -> int: ...

    def turns(self, pass_number: int, first: int) -> Iterator[tuple[Turn, Any]]:
        """From global batch `first` on."""
        ...


def source_of(dataset: Any, batch_size: int | None, *, group: Group, seed: int, bound: int | None,
              shards: int | None, collate: Collate | None, num_workers: int, sharded: bool,
              **sampling: Any) -> tuple[Source, Callable[[Any], Any]]:
    """The source for a loader, and what is left to do with its batches: bringing them to the device, or on it."""
    if batch_size is not None:
        batch_size = whole_number("batch_size", batch_size, least=1)
    parts = _parts(group, bound, shards, batch_size, sharded)
    workers = partial(Workers, count=num_workers, pin=group.device.type == "cuda",
                      timeout_seconds=group.timeout_seconds, rank=group.rank)
    place = partial(to_device, device=group.device)
    if _is_stream(dataset):
        _require_equal(group, None, batch_size)
        return _stream(dataset, batch_size, group, parts, workers, collate, sharded, seed, **sampling), place
    if sharded:
        raise UsageError(f"sharded=True was given with a {type(dataset).__name__}, which is read by index.",
                         "It is for streams that give each rank a part of their own.", "Leave it out.")
    arrays = in_memory(dataset)
    readable = dataset if arrays is None else arrays
    samples = _checked_length(readable)
    _require_equal(group, samples, batch_size)
    indexed = partial(Indexed, sampling=_sampling(samples, batch_size, group=group, seed=seed, **sampling),
                      samples=samples, seed=seed, parts_of=parts, key_by_position=sampling["weights"] is not None)
    if arrays is not None and collate is None:
        return indexed(from_memory(arrays, group.device)), arrays.finish
    return indexed(workers(SampleReader(readable, collate or default_collate)).replies), place


def _parts(group: Group, bound: int | None, shards: int | None, batch_size: int | None,
           sharded: bool) -> Callable[[int], tuple[Part, ...]]:
    """From the rows of a global batch to this rank's micro-batches."""
    if shards is None:
        return partial(parts_of, rank=group.rank, size=group.size, bound=bound)
    if sharded:
        raise UsageError("sharded=True was given in exact mode.",
                         "What a stream's own parts hold depends on the number of ranks, and so would the training.",
                         "Leave it out: every rank then reads the stream and keeps its shards.")
    divided = partial(shards_of, rank=group.rank, size=group.size, bound=bound, shards=shards)
    if batch_size is not None:
        divided(batch_size)   # says now whether a shard fits
    return divided


def _is_stream(dataset: Any) -> bool:
    return isinstance(dataset, IterableDataset) or (hasattr(dataset, "__iter__") and not hasattr(dataset, "__getitem__")
                                                    and not isinstance(dataset, (DataLoader, set)))


def _stream(dataset: Any, batch_size: int | None, group: Group, parts: Callable[[int], tuple[Part, ...]],
            workers: Callable[..., Workers[Request]], collate: Collate | None, sharded: bool, seed: int, *,
            drop_last: bool, **by_index: Any) -> Stream:
    given = [name for name, value in by_index.items() if value is not None and value is not False]
    if given:
        raise UsageError(f"{' and '.join(given)} was given with a stream ({type(dataset).__name__}).",
                         "A stream has an order of its own, and is read from its beginning.",
                         "Let the stream shuffle or weigh by itself, with `random`, numpy or torch: they are seeded.")
    if batch_size is None:
        raise _no_batch_size()
    if isinstance(dataset, Iterator):
        raise UsageError(f"The loader was given a {type(dataset).__name__}, which can be read only once.",
                         "It is read anew for each pass, and by each worker.",
                         "Give an object whose __iter__ begins anew, such as an IterableDataset.")
    if sharded and batch_size < group.size:
        raise UsageError(f"batch_size is {batch_size} for {group.size} ranks, with sharded=True.",
                         "Each rank reads its share of a global batch from its own stream, at least one sample.",
                         f"Use a batch_size of {group.size} or more.")
    reading = (Sharded(batch_size=batch_size, parts_of=parts, rank=group.rank, size=group.size) if sharded
               else Whole(batch_size=batch_size, parts_of=parts))
    collate = collate or default_collate
    length = len(dataset) if isinstance(dataset, Sized) and not sharded else None
    return Stream(reading, workers(StreamReader(dataset, collate, reading, seed)), collate, group=group, seed=seed,
                  drop_last=drop_last, length=length)


def whole_number(name: str, value: Any, *, least: int) -> int:
    """The value as an int; raises UsageError for one that is not whole or too small."""
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if isinstance(value, bool) or number < least:
        raise UsageError(f"{name} is {value!r}.", f"It must be a whole number, at least {least}.",
                         f"Give {name}={max(least, 1)} or more.")
    return number


def _sampling(n: int, batch_size: int | None, *, group: Group, seed: int, shuffle: bool, drop_last: bool, weights: Any,
              batch_sampler: Any) -> Sampling:
    if batch_sampler is None:
        if batch_size is None:
            raise _no_batch_size()
        return EvenSampling(n, batch_size, seed=seed, shuffle=shuffle, drop_last=drop_last, weights=weights)
    others = {"batch_size": batch_size is not None, "shuffle": shuffle, "drop_last": drop_last,
              "weights": weights is not None}
    if any(others.values()):
        raise UsageError(f"batch_sampler was given with {', '.join(name for name, given in others.items() if given)}.",
                         "A batch sampler alone decides the global batches and their order.", "Leave the others out.")
    return ListedSampling(batch_sampler, n, seed=seed, group=group)


def _no_batch_size() -> UsageError:
    return UsageError("The loader was given neither batch_size nor batch_sampler.",
                      "It must know how many samples one step has, over all devices together.",
                      "Give the batch size of the script that runs on one device.")


def _checked_length(dataset: Any) -> int:
    """Number of samples; raises UsageError for what is no data set, and DataError for an empty one."""
    if isinstance(dataset, DataLoader):
        raise UsageError("The loader was given a torch DataLoader.", "rankwise makes the batches itself.",
                         "Give its data set: run.loader(loader.dataset, batch_size, shuffle=..., num_workers=...).")
    if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")) or isinstance(dataset, (str, bytes)):
        raise UsageError(f"The loader was given a {type(dataset).__name__}.",
                         "A data set has __getitem__ and __len__, or is a stream (__iter__), a tensor, a numpy array, "
                         "or a tuple or mapping of these.", "Give one of them.")
    if isinstance(dataset, (tuple, Mapping)):
        members = dataset.values() if isinstance(dataset, Mapping) else dataset
        raise UsageError(f"The loader was given a {type(dataset).__name__} of "
                         f"{', '.join(type(member).__name__ for member in list(members)[:4]) or 'nothing'}.",
                         "A tuple or mapping is taken for columns: tensors or numpy arrays with one row a sample.",
                         "Give one data set, or a list of samples.")
    if len(dataset) == 0:
        raise DataError("The loader was given an empty data set.", "It has no sample to make a batch from.",
                        "See where the data set looks for its files.")
    return len(dataset)


def _require_equal(group: Group, samples: int | None, batch_size: int | None) -> None:
    if group.size == 1:
        return
    seen = group.gather_objects((samples, batch_size))
    if len(set(seen)) > 1:
        told = "; ".join(f"rank {rank}: {n} samples, batch_size {size}" for rank, (n, size) in enumerate(seen))
        raise DataError("The ranks made a loader with different data.", f"{told}.",
                        "Give every rank the whole data set and the global batch size; rankwise gives each its slice.")
