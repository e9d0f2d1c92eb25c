"""Loaders over indexed data: the same global batches on any number of ranks and workers, resumed anywhere."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import namedtuple
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, RandomSampler, TensorDataset

from ranks import run_groups
from rankwise.data.loader import Loader
from rankwise.errors import CheckpointError, DataError, UsageError
from stand_in import StandIn, loader


class Squares(Dataset[Any]):
    """n samples: the index, and numbers that the three generators draw."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, torch.tensor([random.random(), np.random.random(), torch.rand(()).item()], dtype=torch.float64)


def batches_of(size: int, dataset: Any, batch_size: int | None, *, passes: int = 1, **options: Any) -> list[list[Any]]:
    """The global batches of some passes, put together from all ranks; each rank takes equally many turns."""
    ranks = []
    for rank in range(size):
        shares: list[Any] = []
        reader = loader(dataset, batch_size, rank=rank, size=size, shares=shares, **options)
        batches: list[list[Any]] = []
        for _ in range(passes):
            for first, *_ in reader:
                if shares[-1].is_first:
                    batches.append([])
                assert len(first) == shares[-1].rows
                batches[-1].extend(first.tolist())
            assert shares.pop() is None
        ranks.append((len(shares), batches))
    assert len({turns for turns, _ in ranks}) == 1
    return [joined(parts) for parts in zip(*(batches for _, batches in ranks), strict=True)]


def joined(parts: Any) -> list[Any]:
    return list(chain.from_iterable(parts))


# The same on any number of ranks

@pytest.mark.parametrize("micro_batch", [None, 3])
@pytest.mark.parametrize("dataset", [Squares(53), TensorDataset(torch.arange(53))], ids=["samples", "arrays"])
def test_global_batches_do_not_depend_on_the_world_size(dataset: Any, micro_batch: int | None) -> None:
    """Ragged global batches are the same on 1 to 7 ranks, and each pass has every sample once, in another order."""
    one = batches_of(1, dataset, 10, passes=2, shuffle=True)
    assert [len(batch) for batch in one] == [10, 10, 10, 10, 10, 3] * 2
    first, second = joined(one[:6]), joined(one[6:])
    assert sorted(first) == sorted(second) == list(range(53))
    assert first != second
    for size in (2, 3, 4, 7):
        assert batches_of(size, dataset, 10, passes=2, shuffle=True, micro_batch=micro_batch) == one


def test_samples_and_arrays_have_the_same_order() -> None:
    """How a data set is read does not change its order; another seed or loader number does."""
    one = batches_of(1, TensorDataset(torch.arange(53)), 10, shuffle=True)
    assert batches_of(1, Squares(53), 10, shuffle=True) == one
    assert batches_of(1, Squares(53), 10, shuffle=True, seed=1) != one
    assert batches_of(1, Squares(53), 10, shuffle=True, number=1) != one
    assert batches_of(1, Squares(53), 10) == [list(range(start, min(start + 10, 53))) for start in range(0, 53, 10)]


def test_drop_last_leaves_out_the_smaller_batch() -> None:
    """With drop_last the tail is left out on every rank, and len counts what is left."""
    assert batches_of(2, Squares(53), 10, drop_last=True) == batches_of(1, Squares(53), 10)[:5]
    assert len(loader(Squares(53), 10, drop_last=True)) == 5
    assert len(loader(Squares(53), 10)) == 6
    assert len(loader(Squares(53), 10, rank=3, size=4)) == 6


@pytest.mark.parametrize(("replicas", "turns"), [(1, 4), (2, 2)])
def test_micro_batch_counts_for_each_device(replicas: int, turns: int) -> None:
    """micro_batch bounds the rows of a device: a rank that drives two takes twice as many at once."""
    shares: list[Any] = []
    list(loader(Squares(10), 10, micro_batch=3, replicas=replicas, shares=shares))
    assert len(shares) == turns + 1


@pytest.mark.parametrize("dataset", [Squares(53), TensorDataset(torch.arange(53))], ids=["samples", "arrays"])
def test_resumes_at_every_global_batch_in_another_world_size(dataset: Any) -> None:
    """Stopped after any global batch on 2 ranks, 3 ranks go on with the next, and with the next pass."""
    whole = batches_of(1, dataset, 10, passes=2, shuffle=True)
    for stop in range(7):
        reader = loader(dataset, 10, rank=1, size=2, shuffle=True)
        state = reader.state_dict()
        for number, _ in enumerate(reader, 1):
            if number == stop:
                state = reader.state_dict()
        rest: list[list[list[int]]] = []
        for rank in range(3):
            again = loader(dataset, 10, rank=rank, size=3, shuffle=True)
            again.load_state_dict(state)
            rest.append([first.tolist() for _ in range(2) for first, *_ in again])
        assert [joined(parts) for parts in zip(*rest, strict=True)] == whole[stop:]


def test_state_is_that_of_the_pass() -> None:
    """Passes that ended, were left early or were begun anew each count once."""
    reader = loader(Squares(30), 10)
    assert (reader.passes, reader.state_dict()["batch"]) == (0, 0)
    list(reader)
    assert (reader.passes, reader.state_dict()["batch"]) == (1, 0)
    for _ in reader:
        assert reader.state_dict() == {"passes": 1, "batch": 1, "batch_size": 10, "samples": 30}
        break
    assert reader.passes == 2
    kept = iter(reader)
    next(kept)
    list(reader)
    assert reader.passes == 4
    reader.load_state_dict({"passes": 4, "batch": 3, "batch_size": 10, "samples": 30})
    list(zip([], reader, strict=False))   # a pass that was begun, and not asked for a batch
    assert (reader.passes, reader.state_dict()["batch"]) == (5, 0)
    assert list(kept) == []


def test_resume_in_the_middle_needs_the_same_batches() -> None:
    """Another batch size or data set in the middle of a pass is refused; between passes it is fine."""
    state = {"passes": 1, "batch": 2, "batch_size": 10, "samples": 30}
    with pytest.raises(CheckpointError, match="batch_size 10; the loader has 5"):
        loader(Squares(30), 5).load_state_dict(state)
    with pytest.raises(CheckpointError, match="samples 30; the loader has 31"):
        loader(Squares(31), 10).load_state_dict(state)
    loader(Squares(31), 5).load_state_dict({**state, "batch": 0})


def test_loop_is_told_of_each_micro_batch() -> None:
    """The share in hand is announced before its batch, and None when the pass is over, left or failed."""
    shares: list[Any] = []
    reader = loader(Squares(4), 4, micro_batch=3, shares=shares)
    for _ in reader:
        assert shares[-1].rows == 2
        break
    assert [share and (share.rows, share.global_rows, share.is_first, share.is_last) for share in shares] == [
        (2, 4, True, False), None]
    shares.clear()
    list(reader)
    assert [share and share.is_last for share in shares] == [False, True, None]


def test_several_loaders_in_one_loop() -> None:
    """Two loaders in step give what each gives alone."""
    one, two = loader(Squares(20), 5, shuffle=True), loader(TensorDataset(torch.arange(20)), 5)
    pairs = [(a.tolist(), b.tolist()) for (a, _), (b,) in zip(one, two, strict=True)]
    assert [b for _, b in pairs] == batches_of(1, Squares(20), 5)
    assert [a for a, _ in pairs] == batches_of(1, Squares(20), 5, shuffle=True)


def test_positions_of_rows() -> None:
    """Rows are found in the micro-batch in hand, then in the whole pass; a number that fits neither is not."""
    reader = loader(Squares(23), 10, rank=1, size=2, micro_batch=3)
    handed = []
    for first, _ in reader:
        handed += first.tolist()
        assert reader.positions(len(first)).tolist() == first.tolist()
    assert reader.positions(len(handed)).tolist() == handed
    assert reader.positions(99) is None


# Randomness by sample

@pytest.mark.parametrize("workers", [0, 2])
def test_random_numbers_belong_to_the_sample(workers: int) -> None:
    """A sample's random numbers are the same on any number of ranks and workers, and others in the next pass."""
    def drawn(size: int, num_workers: int) -> dict[tuple[int, int], list[float]]:
        found = {}
        for rank in range(size):
            reader = loader(Squares(23), 10, rank=rank, size=size, shuffle=True, micro_batch=4, num_workers=num_workers)
            for number in range(2):
                for indices, numbers in reader:
                    for index, row in zip(indices.tolist(), numbers.tolist(), strict=True):
                        found[number, index] = row
        return found

    one = drawn(1, 0)
    assert drawn(3, workers) == one
    numbers = np.array(list(one.values()))
    assert len(np.unique(numbers)) == 2 * 23 * 3


def test_reading_leaves_the_generators_of_the_training_alone() -> None:
    """What the loop body draws does not depend on whether workers read the samples."""
    def drawn(num_workers: int) -> list[float]:
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        return [value for _ in loader(Squares(10), 5, num_workers=num_workers)
                for value in (random.random(), np.random.random(), torch.rand(()).item())]
    assert drawn(0) == drawn(1)


def test_weighted_samples_differ_each_time_they_come() -> None:
    """Drawn twice in a pass, a sample has other random numbers; the draws do not depend on the world size."""
    weights = [0, 1, 3, *[0] * 20]
    one = batches_of(1, Squares(23), 5, weights=weights)
    assert batches_of(3, Squares(23), 5, weights=weights) == one
    assert set(joined(one)) == {1, 2}
    assert sum(map(len, one)) == 23
    rows = torch.cat([numbers for _, numbers in loader(Squares(23), 5, weights=weights)])
    assert len(rows.unique()) == 23 * 3


# Micro-batches without rows

Pair = namedtuple("Pair", ["tokens", "names"])


@dataclass
class Sentence:
    tokens: torch.Tensor
    length: int

    def __len__(self) -> int:
        return self.length


def empty_batch(collate: Any) -> Any:
    """What rank 1 of 2 gets of a global batch of one sample."""
    shares: list[Any] = []
    (batch,) = loader(Squares(1), 5, rank=1, size=2, collate_fn=collate, shares=shares)
    assert (shares[0].rows, shares[0].global_rows) == (0, 1)
    return batch


def test_empty_micro_batch_has_no_rows_wherever_the_batch_dimension_is() -> None:
    """Tensors, arrays, lists, mappings, named tuples and dataclasses are cut along what grows with the samples."""
    assert [tuple(part.shape) for part in empty_batch(None)] == [(0,), (0, 3)]
    assert empty_batch(lambda samples: {"x": torch.zeros(7, len(samples)), "y": np.zeros((len(samples), 2)), "t": 0.5}
                       )["x"].shape == (7, 0)
    pair = empty_batch(lambda samples: Pair(torch.zeros(len(samples), 4), ["a"] * len(samples)))
    assert (type(pair), tuple(pair.tokens.shape), pair.names) == (Pair, (0, 4), [])
    sentence = empty_batch(lambda samples: Sentence(torch.zeros(len(samples) * 5), 5))
    assert tuple(sentence.tokens.shape) == (0,)
    tokens, offsets = empty_batch(lambda samples: (torch.zeros(5 * len(samples)), torch.arange(len(samples) + 1) * 5))
    assert (len(tokens), offsets.tolist()) == (0, [0])


def test_batch_that_cannot_be_cut_keeps_one_row() -> None:
    """Where the batch holds an object of unknown kind it stays as it is, with one row that the share does not count."""
    graph, target = empty_batch(lambda samples: (random.Random(), torch.zeros(len(samples))))
    assert isinstance(graph, random.Random)
    assert len(target) == 1


# Kinds of data in memory

def test_arrays_in_all_forms() -> None:
    """Tensors, read-only numpy arrays, tuples, mappings and subsets of them give batches of the same form."""
    numbers = np.arange(20, dtype=np.float32)
    numbers.setflags(write=False)
    data = TensorDataset(torch.arange(20), torch.arange(20) * 2)
    half = torch.utils.data.Subset(torch.utils.data.Subset(data, range(1, 20)), [4, 2, 0])
    assert next(iter(loader(numbers, 3))).tolist() == [0, 1, 2]
    assert next(iter(loader(torch.arange(20), 3))).tolist() == [0, 1, 2]
    assert [part.tolist() for part in next(iter(loader((numbers, numbers[::-1]), 3)))] == [[0, 1, 2], [19, 18, 17]]
    batch = next(iter(loader({"x": numbers, "y": torch.arange(20)}, 3)))
    assert {name: column.tolist() for name, column in batch.items()} == {"x": [0, 1, 2], "y": [0, 1, 2]}
    assert [part.tolist() for part in next(iter(loader(half, 3)))] == [[5, 3, 1], [10, 6, 2]]
    assert [part.tolist() for part in next(iter(loader(half, 3, collate_fn=torch.utils.data.default_collate)))
            ] == [[5, 3, 1], [10, 6, 2]]


def test_list_is_a_list_of_samples() -> None:
    """A list of tensors holds one sample each, of any length."""
    texts = [torch.arange(length) for length in (3, 5, 2, 4)]
    padded = next(iter(loader(texts, 4, collate_fn=lambda samples: torch.nn.utils.rnn.pad_sequence(samples))))
    assert tuple(padded.shape) == (5, 4)


# Batch samplers

class Buckets:
    """Global batches of unequal sizes, in an order that Python's generator shuffles."""

    def __init__(self) -> None:
        self.epochs: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def __iter__(self) -> Any:
        batches = [[0, 1, 2], [3], [4, 5, 6, 7, 8], [9, 10]]
        random.shuffle(batches)
        yield from batches


def test_batch_sampler_gives_the_global_batches() -> None:
    """Its batches are cut over ranks as they are, its own shuffling is equal on all ranks and resumes."""
    one = batches_of(1, Squares(11), None, batch_sampler=Buckets(), passes=3)
    assert sorted(joined(one[:4])) == list(range(11))
    assert len({str(one[start:start + 4]) for start in (0, 4, 8)}) > 1
    assert batches_of(2, Squares(11), None, batch_sampler=Buckets(), passes=3, micro_batch=2) == one
    reader = loader(Squares(11), batch_sampler=Buckets())
    with pytest.raises(TypeError, match="no length"):
        len(reader)
    reader.load_state_dict({"passes": 1, "batch": 2, "batch_size": None, "samples": 11})
    assert [first.tolist() for first, _ in reader] == one[6:8]
    assert len(reader) == 4
    assert reader.dataset.n == 11


def test_batch_sampler_hears_of_the_pass() -> None:
    """set_epoch is called with the number of the pass, and torch's own samplers shuffle by (seed, pass)."""
    buckets = Buckets()
    batches_of(1, Squares(11), None, batch_sampler=buckets, passes=2)
    assert buckets.epochs == [0, 1]
    sampler = BatchSampler(RandomSampler(Squares(11)), 4, drop_last=False)
    one = batches_of(1, Squares(11), None, batch_sampler=sampler)
    assert batches_of(2, Squares(11), None, batch_sampler=sampler) == one
    assert len(loader(Squares(11), batch_sampler=sampler)) == 3


@pytest.mark.parametrize(("sampler", "message"), [
    (iter([[0]]), "read anew for each pass"), (7, "read anew for each pass"), ([], "gave no batches"),
    ([[]], "at least one index"), ([3], "at least one index"), ([["a"]], "at least one index"),
    ([[0.5]], "at least one index"), ([[0, 11]], "samples 0 to 10"), ([[-1]], "samples 0 to 10"),
])
def test_batch_sampler_that_gives_no_batches(sampler: Any, message: str) -> None:
    """What is no list of lists of indices is refused with what it should be."""
    with pytest.raises(UsageError, match=message):
        list(loader(Squares(11), batch_sampler=sampler))


def read_divided(group: Any) -> str:
    sampler = BatchSampler(DistributedSampler(Squares(12), num_replicas=group.size, rank=group.rank), 2, False)
    with pytest.raises(DataError) as raised:
        list(Loader(Squares(12), group=group, seed=0, on_micro_batch=lambda *_: None, batch_sampler=sampler))
    return str(raised.value)


def test_batch_sampler_that_divides_by_rank_is_found_out() -> None:
    """On real ranks, a sampler that already gives each rank its own part is refused on every rank."""
    for text in run_groups(read_divided, 2):
        assert "no DistributedSampler" in text


def read_unequal(group: Any) -> str:
    with pytest.raises(DataError) as raised:
        Loader(Squares(12 + group.rank), 4, group=group, seed=0, on_micro_batch=lambda *_: None)
    return str(raised.value)


def test_ranks_with_different_data_are_found_out() -> None:
    """On real ranks, data sets of different lengths are refused on every rank, with the lengths."""
    for text in run_groups(read_unequal, 2):
        assert "rank 0: 12 samples, batch_size 4; rank 1: 13 samples" in text


# Workers

class Pids(Squares):
    def __getitem__(self, index: int) -> Any:
        if index == 7 and self.n == 9:
            raise ValueError("this one is damaged")
        if index == 7 and self.n == 10:
            os.kill(os.getpid(), signal.SIGKILL)
        return index, os.getpid()


def test_workers_read_beside_the_training_and_stay() -> None:
    """The same processes, other than this one, read all passes, also after one that was left early."""
    reader = loader(Pids(23), 5, num_workers=2, shuffle=True)
    first = {int(pid) for _, pids in reader for pid in pids}
    for _ in reader:
        break
    third = [(indices.tolist(), set(pids.tolist())) for indices, pids in reader]
    assert sorted(joined(indices for indices, _ in third)) == list(range(23))
    assert set.union(*(pids for _, pids in third)) == first
    assert len(first) == 2
    assert os.getpid() not in first


@pytest.mark.parametrize("workers", [0, 1])
def test_error_in_a_data_set_names_the_sample(workers: int) -> None:
    """The data set's own error comes through, with the sample that it was about."""
    with pytest.raises(ValueError, match="this one is damaged") as raised:
        list(loader(Pids(9), 3, num_workers=workers))
    told = str(raised.value) + "".join(getattr(raised.value, "__notes__", []))
    assert "sample 7 of the data set" in told or sys.version_info < (3, 11)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")   # torch raises in a signal handler
def test_killed_worker_is_reported() -> None:
    """A worker that dies gives one message about workers and memory, not a hang."""
    with pytest.raises(DataError, match="Rank 0 got no batch from its 1 data worker"):
        list(loader(Pids(10), 2, num_workers=1))


READING = """
import os, sys, time, torch
from rankwise.data.loader import Loader
from rankwise.group import Group
from rankwise.world import World

class Slow:
    def __len__(self):
        return 8
    def __getitem__(self, index):
        os.write(1, b"%d\\n" % os.getpid())   # in one piece: two workers write here
        time.sleep(60)

group = Group.open(World(), torch.device("cpu"))
list(Loader(Slow(), 2, group=group, seed=0, num_workers=2, on_micro_batch=lambda *held: None))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere torch's workers look for their parent themselves")
def test_workers_go_with_a_process_that_is_killed() -> None:
    """At once, also one that reads a sample; torch's own look for their parent between two samples."""
    reading = subprocess.Popen([sys.executable, "-c", READING], stdout=subprocess.PIPE, text=True)
    assert reading.stdout is not None
    workers = {psutil.Process(int(reading.stdout.readline())) for _ in range(2)}
    assert reading.pid not in {worker.pid for worker in workers}
    reading.kill()
    reading.wait(timeout=20)
    reading.stdout.close()
    _, left = psutil.wait_procs(workers, timeout=2.5)
    for worker in left:
        worker.kill()
    assert not left


# Augmentation in the loader

def test_augment_is_applied_to_the_first_element_by_sample() -> None:
    """An augmentation gets the same key for a sample on any number of ranks, in memory or read one by one."""
    def add_key(images: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        assert keys.dtype == torch.int64
        return torch.stack([images, keys], dim=1)

    def keys_of(size: int, dataset: Any, **options: Any) -> dict[int, int]:
        readers = [loader(dataset, 5, rank=rank, size=size, shuffle=True, augment=[add_key], **options)
                   for rank in range(size)]
        rows = [row for reader in readers for batch in reader for row in batch[0].tolist()]
        assert len(rows) == 23
        return dict(rows)

    one = keys_of(1, Squares(23))
    assert keys_of(4, TensorDataset(torch.arange(23), torch.arange(23)), micro_batch=1) == one
    assert len(set(one.values())) == 23
    mapping = next(iter(loader({"x": torch.arange(3), "y": torch.arange(3)}, 3, augment=[add_key])))
    assert (mapping["x"].ndim, mapping["y"].ndim) == (2, 1)


@pytest.mark.parametrize("collate", [lambda samples: ["text"], lambda samples: [torch.zeros(9, len(samples))]])
def test_augment_needs_one_row_a_sample_first(collate: Any) -> None:
    """A batch whose first element is no tensor with a row for each sample is refused."""
    with pytest.raises(UsageError, match="one row for each of 3 samples"):
        list(loader(Squares(3), 3, collate_fn=collate, augment=[lambda images, keys: images]))


# Bad input

@pytest.mark.parametrize(("dataset", "options", "message"), [
    (Squares(5), {"batch_size": 0}, "batch_size is 0"),
    (Squares(5), {"batch_size": -2}, "batch_size is -2"),
    (Squares(5), {"batch_size": 2.5}, "batch_size is 2.5"),
    (Squares(5), {"batch_size": True}, "batch_size is True"),
    (Squares(5), {"batch_size": "8"}, "batch_size is '8'"),
    (Squares(5), {}, "neither batch_size nor batch_sampler"),
    (Squares(5), {"batch_size": 2, "micro_batch": 0}, "micro_batch is 0"),
    (Squares(5), {"batch_size": 2, "num_workers": -1}, "num_workers is -1"),
    (Squares(5), {"batch_size": 2, "sharded": True}, "read by index"),
    (Squares(5), {"batch_size": 2, "augment": [3]}, "list of callables"),
    (Squares(5), {"batch_size": 2, "batch_sampler": [[0]], "shuffle": True}, "given with batch_size, shuffle"),
    (Squares(5), {"batch_size": 8, "drop_last": True}, "Not one batch would be left"),
    (Squares(5), {"batch_size": 2, "weights": [1, 2]}, "for each of the 5 samples"),
    (Squares(5), {"batch_size": 2, "weights": [0] * 5}, "not all of them 0"),
    (Squares(5), {"batch_size": 2, "weights": [1, 1, 1, 1, -1]}, "none below 0"),
    (Squares(5), {"batch_size": 2, "weights": [1, 1, 1, 1, float("nan")]}, "finite"),
    (DataLoader([1, 2]), {"batch_size": 2}, "loader.dataset"),
    (None, {"batch_size": 2}, "given a NoneType"),
    ("data/train", {"batch_size": 2}, "given a str"),
    ((Squares(5), Squares(5)), {"batch_size": 2}, "tuple of Squares, Squares"),
    ({}, {"batch_size": 2}, "dict of nothing"),
    ((torch.zeros(5), torch.zeros(4)), {"batch_size": 2}, "5, 4 rows"),
    (torch.tensor(5), {"batch_size": 2}, "empty data set"),
    (np.array(["a", "b"]), {"batch_size": 2}, "dtype <U1"),
    ([], {"batch_size": 2}, "empty data set"),
])
def test_bad_input_has_a_message(dataset: Any, options: dict[str, Any], message: str) -> None:
    """Each value or combination that cannot be used is refused when the loader is made, in three parts."""
    with pytest.raises((UsageError, DataError), match=message) as raised:
        loader(dataset, **options)
    assert str(raised.value).count("\n  ") == 2


def test_numbers_may_be_numpy_integers() -> None:
    """A batch size from an array counts as a whole number."""
    assert len(loader(Squares(5), np.int64(2))) == 3


def test_stand_in_group_is_like_one_of_the_real_ones() -> None:
    """The group of these tests says what a real group of one says."""
    assert StandIn().gather_objects("x") == run_groups(say, 1)[0]


def say(group: Any) -> Any:
    return group.gather_objects("x")
