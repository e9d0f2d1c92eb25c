"""Loaders over streams: real ranks read the same global batches, end together, and find out when they cannot."""

from __future__ import annotations

import multiprocessing
import os
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

from ranks import run_groups
from rankwise.data.loader import Loader
from rankwise.errors import DataError, MisuseError, UsageError
from stand_in import loader


class Counting(IterableDataset[Any]):
    """The numbers below n with three random ones; at once an example of what a stream can know of itself."""

    def __init__(self, n: int, epochs: bool = False) -> None:
        self.n = n
        if epochs:
            self.set_epoch = self._set_epoch
        self.offset = 0

    def _set_epoch(self, epoch: int) -> None:
        self.offset = 1000 * epoch

    def __iter__(self) -> Iterator[Any]:
        for number in range(self.n):
            yield self.offset + number, torch.tensor([random.random(), np.random.random(), torch.rand(()).item()],
                                                     dtype=torch.float64)


class DividedByWorker(Counting):
    """What torch's documentation advises for plain use: each worker yields a part."""

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        start, step = (worker.id, worker.num_workers) if worker else (0, 1)
        yield from list(super().__iter__())[start::step]


class ShuffleBuffer(Counting):
    """Shuffles with Python's generator while it reads ahead."""

    def __iter__(self) -> Iterator[Any]:
        held: list[Any] = []
        for sample in super().__iter__():
            held.append(sample)
            if len(held) == 8:
                yield held.pop(random.randrange(8))
        random.shuffle(held)
        yield from held


class Part(IterableDataset[Any]):
    """One rank's own numbers: those below `n` that belong to its part, further divided over workers."""

    def __init__(self, numbers: list[int]) -> None:
        self.numbers = numbers

    def __iter__(self) -> Iterator[int]:
        worker = get_worker_info()
        start, step = (worker.id, worker.num_workers) if worker else (0, 1)
        yield from self.numbers[start::step]


def on_group(group: Any, dataset: Any, batch_size: int, shares: list[Any] | None = None, **options: Any) -> Loader:
    multiprocessing.set_start_method("fork", force=True)   # workers as a rank of a real run has them on Linux

    def note(_: Loader, share: Any) -> None:
        if shares is not None:
            shares.append(share)
    return Loader(dataset, batch_size, group=group, seed=0, on_micro_batch=note, **options)


def rows_of(group: Any, dataset: Any, batch_size: int, passes: int, start: dict[str, Any] | None,
            options: dict[str, Any]) -> dict[str, Any]:
    """What a rank read: its turns as (global batch, rows), a collective in each body."""
    shares: list[Any] = []
    reader = on_group(group, dataset, batch_size, shares, **options)
    if start:
        reader.load_state_dict({"batch_size": batch_size, "samples": None, **start})
    turns, batch = [], -1
    for number in range(reader.passes, passes):
        for values in reader:
            first, rest = values if isinstance(values, (list, tuple)) else (values, torch.empty(0))
            batch += shares[-1].is_first
            assert len(first) == shares[-1].rows
            assert group.sum(torch.tensor([len(first)])).item() <= shares[-1].global_rows
            turns.append((number, batch, first.tolist(), rest.tolist(), shares[-1].global_rows))
        assert shares.pop() is None
    return {"turns": turns, "passes": reader.passes}


def together(size: int, dataset: Any, batch_size: int, *, passes: int = 1, start: dict[str, Any] | None = None,
             **options: Any) -> tuple[list[list[int]], dict[Any, Any]]:
    """The global batches put together from real ranks, and the random numbers of each sample by pass."""
    ranks = [rank["turns"] for rank in run_groups(rows_of, size, dataset, batch_size, passes, start, options)]
    assert len({len(turns) for turns in ranks}) == 1
    batches: dict[int, list[int]] = {}
    totals: dict[int, int] = {}
    numbers: dict[Any, Any] = {}
    for turns in ranks:
        for number, batch, first, rest, total in turns:
            batches.setdefault(batch, []).extend(first)
            totals[batch] = total
            numbers.update({(number, sample): row for sample, row in zip(first, rest, strict=bool(rest))})
    assert [len(batches[batch]) for batch in sorted(batches)] == [totals[batch] for batch in sorted(batches)]
    return [batches[batch] for batch in sorted(batches)], numbers


# Every rank reads the whole stream

@pytest.mark.parametrize(("size", "options"), [
    (2, {}), (3, {"micro_batch": 2}), (4, {"num_workers": 1}), (2, {"num_workers": 2, "micro_batch": 3})])
def test_stream_is_the_same_for_any_number_of_ranks_and_workers(size: int, options: dict[str, Any]) -> None:
    """Global batches, tail included, and each sample's random numbers are those of one rank without workers."""
    one = together(1, Counting(23), 6, passes=2)
    assert one[0] == [list(range(start, min(start + 6, 23))) for start in range(0, 23, 6)] * 2
    assert len(np.unique(np.array(list(one[1].values())))) == 2 * 23 * 3
    assert together(size, Counting(23), 6, passes=2, **options) == one


def test_stream_whose_end_is_the_end_of_a_global_batch() -> None:
    """A stream of whole global batches ends without an empty one."""
    assert [len(batch) for batch in together(2, Counting(12), 6)[0]] == [6, 6]


def test_stream_that_divides_by_worker_is_read_whole() -> None:
    """A stream that would give each worker a part gives all of it to each, so that nothing is lost."""
    assert together(2, DividedByWorker(23), 6, num_workers=2)[0] == together(1, Counting(23), 6)[0]


def test_stream_with_a_shuffle_buffer_is_the_same_everywhere() -> None:
    """A stream that shuffles with the global generators does so alike everywhere, and anew in each pass."""
    one = together(1, ShuffleBuffer(23), 6, passes=2)
    assert sorted(sum(one[0][:4], [])) == list(range(23))  # noqa: RUF017
    assert one[0][:4] != one[0][4:]
    assert together(2, ShuffleBuffer(23), 6, passes=2, num_workers=2) == one


@pytest.mark.parametrize("workers", [0, 2])
def test_stream_resumes_at_a_global_batch(workers: int) -> None:
    """Another number of ranks goes on at the batch and pass that a state names, random numbers included."""
    whole, numbers = together(1, ShuffleBuffer(23), 6, passes=2)
    rest, others = together(3, ShuffleBuffer(23), 6, passes=2, start={"passes": 0, "batch": 3}, num_workers=workers)
    assert rest == whole[3:]
    assert others.items() <= numbers.items()


def test_stream_hears_of_the_pass() -> None:
    """set_epoch is called with the number of the pass, in workers too."""
    for workers in (0, 1):
        batches, _ = together(1, Counting(4, epochs=True), 4, passes=2, num_workers=workers)
        assert batches == [[0, 1, 2, 3], [1000, 1001, 1002, 1003]]


def test_stream_without_end_is_left_by_break() -> None:
    """An endless stream gives batches until the loop is left; the next pass begins anew."""
    reader = loader(Counting(10**9), 6, rank=1, size=2)
    for _ in range(2):
        for number, (first, _) in enumerate(reader):
            assert first.tolist() == list(range(6 * number + 3, 6 * number + 6))
            if number == 2:
                break
    assert reader.passes == 2


def test_drop_last_leaves_out_the_tail_of_a_stream() -> None:
    """With drop_last a smaller global batch is not given."""
    assert [len(batch) for batch in together(2, Counting(23), 6, drop_last=True)[0]] == [6, 6, 6]


def test_length_of_a_stream() -> None:
    """len is that of the data set where it has one, and otherwise a TypeError, as Python expects of len."""
    class Sized(Counting):
        def __len__(self) -> int:
            return self.n

    assert len(loader(Sized(23), 6)) == 4
    assert len(loader(Sized(23), 6, drop_last=True)) == 3
    with pytest.raises(TypeError, match="asked of a stream") as raised:
        len(loader(Counting(23), 6))
    assert isinstance(raised.value, MisuseError)
    assert len(list(loader(Counting(23), 6))) == 4


def test_any_object_that_iterates_is_a_stream() -> None:
    """A plain class with __iter__ will do."""
    class Plain:
        def __iter__(self) -> Iterator[int]:
            return iter(range(5))

    assert [batch.tolist() for batch in loader(Plain(), 2)] == [[0, 1], [2, 3], [4]]


def test_reading_a_stream_leaves_the_generators_of_the_training_alone() -> None:
    """What the loop body draws does not depend on the samples that were read."""
    torch.manual_seed(1)
    drawn = [torch.rand(()).item() for _ in loader(Counting(9), 3)]
    torch.manual_seed(1)
    assert drawn == [torch.rand(()).item() for _ in range(3)]


def test_augment_keys_belong_to_positions() -> None:
    """Augmentation of a stream is keyed by position: the same on any number of ranks."""
    def add_key(images: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        return torch.stack([images, keys], dim=1)

    def keys_of(size: int) -> dict[int, int]:
        return dict(row for rank in range(size) for batch in loader(Counting(13), 5, rank=rank, size=size,
                                                                    augment=[add_key]) for row in batch[0].tolist())
    assert len(set(keys_of(1).values())) == 13
    assert keys_of(3) == keys_of(1)


# What is found out

def read_all(group: Any, datasets: list[Any], options: dict[str, Any]) -> str:
    try:
        list(on_group(group, datasets[group.rank], 6, **options))
    except DataError as error:
        return str(error)
    return "fine"


def test_streams_of_different_lengths_are_found_out() -> None:
    """Where one rank's stream ends early, every rank says so, with the rows that each had."""
    for text in run_groups(read_all, 3, [Counting(14), Counting(14), Counting(20)], {}):
        assert "in global batch 2" in text
        assert "rank 0 had 2 rows; rank 1 had 2 rows; rank 2 had 6 rows" in text


def test_streams_that_divide_by_rank_are_found_out() -> None:
    """Where each rank's stream is a part of its own, every rank says so at the first batch."""
    for text in run_groups(read_all, 2, [Part([0, 2, 4]), Part([1, 3, 5])], {}):
        assert "in global batch 0" in text
        assert "sharded=True" in text


@pytest.mark.parametrize("options", [{}, {"sharded": True}, {"num_workers": 2}, {"sharded": True, "num_workers": 2}])
def test_empty_stream_is_found_out(options: dict[str, Any]) -> None:
    """A stream without any sample is an error on every rank, not a pass of no steps."""
    for text in run_groups(read_all, 2, [Part([]), Part([])], options):
        assert "gave no samples" in text


@pytest.mark.parametrize(("dataset", "options", "message"), [
    (Counting(5), {"batch_size": 2, "shuffle": True}, "shuffle was given with a stream"),
    (Counting(5), {"batch_size": 2, "weights": [1]}, "weights was given with a stream"),
    (Counting(5), {"batch_sampler": [[1]]}, "batch_sampler was given with a stream"),
    (Counting(5), {}, "neither batch_size"),
    (Counting(5), {"batch_size": 0}, "batch_size is 0"),
    (iter([1, 2]), {"batch_size": 2}, "read only once"),
    (Counting(5), {"batch_size": 1, "sharded": True, "size": 2}, "for 2 ranks, with sharded=True"),
    ({1, 2}, {"batch_size": 2}, "given a set"),
])
def test_bad_input_has_a_message(dataset: Any, options: dict[str, Any], message: str) -> None:
    """What does not go with a stream is refused when the loader is made, in three parts."""
    with pytest.raises(UsageError, match=message) as raised:
        loader(dataset, **options)
    assert str(raised.value).count("\n  ") == 2


# Each rank has a part of its own

def read_parts(group: Any, parts: list[list[int]], options: dict[str, Any], first: int) -> list[Any]:
    shares: list[Any] = []
    reader = on_group(group, Part(parts[group.rank]), 6, shares, sharded=True, **options)
    reader.load_state_dict({"passes": 0, "batch": first, "batch_size": 6, "samples": None})
    turns = []
    for values in reader:
        in_hand = shares[-1]
        assert len(values) == in_hand.rows
        total = group.sum(torch.tensor([len(values)])).item()
        turns.append((values.tolist(), total, in_hand.global_rows, reader.positions(len(values)).tolist()))
    return turns


@pytest.mark.parametrize(("options", "first"), [({}, 0), ({"micro_batch": 1}, 0), ({"num_workers": 2}, 0),
                                                ({}, 2), ({"num_workers": 2}, 2), ({"num_workers": 2}, 1)])
def test_sharded_streams_of_unequal_lengths_end_together(options: dict[str, Any], first: int) -> None:
    """Parts of 11, 4 and 0 samples on three ranks are read once, with equally many turns; a resume reads the rest."""
    parts = [list(range(100, 111)), list(range(200, 204)), []]
    ranks = run_groups(read_parts, 3, parts, options, first)
    assert len({len(turns) for turns in ranks}) == 1
    read = [sorted(number for values, *_ in turns for number in values) for turns in ranks]
    if first == 0:
        assert read == parts
    elif options:   # worker 0 reads global batches 0, 2, ... of its part, worker 1 the others
        assert read[0] == sorted(parts[0][0::2][2:] + parts[0][1::2][2 if first == 2 else 0:])
    else:
        assert read == [parts[0][4:], [], []]
    for turns in ranks:
        if "micro_batch" not in options:
            assert all(total == global_rows > 0 for _, total, global_rows, _ in turns)
    places = [place for turns in ranks for *_, positions in turns for place in positions]
    assert len(set(places)) == len(places)


def test_process_of_a_stream() -> None:
    """With workers the stream is read in other processes."""
    class Pids(Counting):
        def __iter__(self) -> Iterator[int]:
            yield from [os.getpid()] * 4

    pids = [int(pid) for batch in loader(Pids(4), 2, num_workers=2) for pid in batch]
    assert len(pids) == 4
    assert os.getpid() not in pids
    assert len(set(pids)) == 2
