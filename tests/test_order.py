"""Index arithmetic: orders are permutations, slices and micro-batches cover each global batch once."""

from __future__ import annotations

import itertools
import math
import tracemalloc
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.data.order import InOrder, Network, Weighted, shuffled
from rankwise.data.partition import even_slices, parts_of, shards_of
from rankwise.data.plan import EvenBatches, Turn, turns
from rankwise.errors import UsageError
from rankwise.keys import mix

quick = settings(max_examples=60, deadline=None)
KEYS = st.integers(0, 2**64 - 1)


@quick
@given(n=st.integers(1, 5000), key=KEYS, network=st.booleans())
def test_order_is_a_permutation(n: int, key: int, network: bool) -> None:
    """Each sample stands at exactly one position, by sort and by network."""
    order = Network(n, key) if network else shuffled(n, key)
    assert sorted(order.at(np.arange(n)).tolist()) == list(range(n))


@pytest.mark.parametrize("n", [65535, 65536, 65537, 65792, 100_003])
def test_order_is_a_permutation_where_the_method_changes(n: int) -> None:
    """Around the size at which the network takes over, and where a * b is just n or much more, nothing is lost."""
    seen = shuffled(n, 11).at(np.arange(n))
    assert seen.dtype == np.int64
    assert np.array_equal(np.sort(seen), np.arange(n))


@quick
@given(n=st.integers(1, 10**9), key=KEYS, data=st.data())
def test_order_answers_anywhere_without_what_came_before(n: int, key: int, data: st.DataObject) -> None:
    """Positions asked for alone, in any sequence, have the samples that they have together."""
    positions = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=8))
    order = Network(n, key)
    together = order.at(np.array(positions))
    assert together.tolist() == [int(order.at(np.array([position]))[0]) for position in positions]
    assert ((together >= 0) & (together < n)).all()


def written_out_network(n: int, key: int, position: int) -> int:
    """The network in plain Python integers."""
    a = math.isqrt(n - 1) + 1
    b = -(-n // a)
    value = position
    while True:
        left, right = divmod(value, b)
        for number in (0, 2, 4):
            left = (left + (mix_on(mix(key, number), right) >> 32) * a // 2**32) % a
            right = (right + (mix_on(mix(key, number + 1), left) >> 32) * b // 2**32) % b
        value = left * b + right
        if value < n:
            return value


def mix_on(state: int, word: int) -> int:
    """SplitMix64's finaliser after one more word, in plain Python integers."""
    mask = 2**64 - 1
    state = ((word ^ state) * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) & mask
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & mask
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB & mask
    return state ^ (state >> 31)


@quick
@given(n=st.integers(2, 10**12), key=KEYS, place=st.floats(0, 1, exclude_max=True))
def test_network_matches_plain_integers(n: int, key: int, place: float) -> None:
    """Array arithmetic on unsigned integers gives what plain Python integers give."""
    position = int(place * n)
    assert int(Network(n, key).at(np.array([position]))[0]) == written_out_network(n, key, position)


def test_order_stays_the_same_between_versions() -> None:
    """A checkpoint from an earlier version resumes in the same order: these values are fixed."""
    assert shuffled(10, mix(0, 0)).at(np.arange(10)).tolist() == SMALL
    assert shuffled(10**8, mix(0, 0)).at(np.arange(4)).tolist() == LARGE


SMALL = [2, 3, 7, 6, 4, 0, 5, 1, 8, 9]
LARGE = [35280096, 90656249, 64882682, 36778256]


def chi_square(counts: np.ndarray) -> float:
    expected = counts.sum() / counts.size
    return float(((counts - expected) ** 2 / expected).sum())


def far_out(freedom: int) -> float:
    """A value that a chi-square sum passes about once in a million."""
    return freedom + 5 * math.sqrt(2 * freedom) + 15


def test_small_orders_are_uniform() -> None:
    """All 24 orders of four samples are equally likely over keys."""
    numbers = {order: number for number, order in enumerate(itertools.permutations(range(4)))}
    seen = [numbers[tuple(shuffled(4, mix(key)).at(np.arange(4)).tolist())] for key in range(12_000)]
    assert chi_square(np.bincount(seen, minlength=24)) < far_out(23)


def test_network_is_uniform() -> None:
    """Over keys a position's sample, and over positions the pair of two neighbours, is as likely anywhere."""
    over_keys = np.array([Network(70_000, mix(key)).at(np.array([5]))[0] for key in range(3000)])
    assert chi_square(np.bincount(over_keys * 30 // 70_000, minlength=30)) < far_out(29)
    for key in range(5):
        blocks = Network(400_000, mix(key)).at(np.arange(400_000)) * 20 // 400_000
        pairs = np.bincount(blocks[:-1] * 20 + blocks[1:], minlength=400)
        assert chi_square(pairs) < far_out(399)


def test_first_index_of_many_needs_no_memory() -> None:
    """At 10^8 samples an index takes a few kilobytes, not an array of that length."""
    tracemalloc.start()
    try:
        shuffled(10**8, 3).at(np.arange(1))
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_weighted_draws_follow_the_weights() -> None:
    """Samples come in proportion to their weights, those of weight 0 never, and each position draws by itself."""
    weights = np.array([0.0, 1.0, 0.0, 3.0, 6.0, 0.0])
    order = Weighted(np.cumsum(weights), mix(7))
    drawn = order.at(np.arange(40_000))
    counts = np.bincount(drawn, minlength=6)
    assert counts[[0, 2, 5]].tolist() == [0, 0, 0]
    expected = weights[[1, 3, 4]] * 4000
    assert float(((counts[[1, 3, 4]] - expected) ** 2 / expected).sum()) < far_out(2)
    assert order.at(np.array([17, 3])).tolist() == [drawn[17], drawn[3]]


@quick
@given(n=st.integers(0, 10_000), parts=st.integers(1, 70))
def test_even_slices_cover_once(n: int, parts: int) -> None:
    """Slices are consecutive, cover everything, and differ by at most one."""
    edges = even_slices(n, parts)
    sizes = np.diff(edges)
    assert (edges[0], edges[-1], len(edges)) == (0, n, parts + 1)
    assert sizes.min() >= 0
    assert sizes.max() - sizes.min() <= 1


@quick
@given(rows=st.integers(1, 300), size=st.integers(1, 9), bound=st.none() | st.integers(1, 40))
def test_micro_batches_cover_a_global_batch(rows: int, size: int, bound: int | None) -> None:
    """Over all ranks micro-batches cover the global batch once, equally many on each rank, none above the bound."""
    ranks = [parts_of(rows, rank=rank, size=size, bound=bound) for rank in range(size)]
    covered = [row for parts in ranks for part in parts for row in range(part.start, part.stop)]
    assert covered == list(range(rows))
    assert len({len(parts) for parts in ranks}) == 1
    for parts in ranks:
        assert all(part.share.rows == part.stop - part.start <= (bound or rows) for part in parts)
        assert {part.share.global_rows for part in parts} == {rows}
        assert [part.share.is_first for part in parts] == [True] + [False] * (len(parts) - 1)
        assert [part.share.is_last for part in parts] == [False] * (len(parts) - 1) + [True]
        sizes = [part.share.rows for part in parts]
        assert max(sizes) - min(sizes) <= 1


@quick
@given(rows=st.integers(1, 100), shards=st.integers(1, 20), data=st.data())
def test_shards_do_not_depend_on_the_number_of_ranks(rows: int, shards: int, data: st.DataObject) -> None:
    """The shards of all ranks together are those of one rank, in order; every rank has equally many turns, and a rank
    with fewer shards an empty one at the end."""
    size = data.draw(st.integers(1, shards))
    [one, *ranks] = [[shards_of(rows, rank=rank, size=world, bound=None, shards=shards) for rank in range(world)]
                     for world in (1, size)]
    whole = [(part.start, part.stop, part.share.shard) for part in one[0]]
    assert [shard for _, _, shard in whole] == list(range(shards))
    assert [row for start, stop, _ in whole for row in range(start, stop)] == list(range(rows))
    assert max(stop - start for start, stop, _ in whole) - min(stop - start for start, stop, _ in whole) <= 1
    [parts] = ranks
    assert [(part.start, part.stop, part.share.shard) for rank in parts for part in rank
            if part.share.shard is not None] == whole
    assert len({len(rank) for rank in parts}) == 1
    for rank in parts:
        assert [part.share.is_last for part in rank] == [False] * (len(rank) - 1) + [True]
        assert {part.share.global_rows for part in rank} == {rows}
        owned = [part.share.shard is not None for part in rank]
        assert owned == sorted(owned, reverse=True)
        assert all(part.share.rows == 0 for part in rank if part.share.shard is None)


def test_six_shards_on_four_ranks() -> None:
    """They have 2, 2, 1 and 1."""
    assert [[part.share.shard for part in shards_of(13, rank=rank, size=4, bound=None, shards=6)]
            for rank in range(4)] == [[0, 1], [2, 3], [4, None], [5, None]]


def test_a_shard_that_does_not_fit_is_refused_with_one_that_does() -> None:
    with pytest.raises(UsageError, match=r"largest of 4 has 5 samples.*\n.*--exact 7, or"):
        shards_of(20, rank=0, size=2, bound=3, shards=4)
    assert shards_of(20, rank=0, size=2, bound=3, shards=7)


def turns_of(n: int, batch_size: int, size: int, bound: int | None, first: int,
             drop_last: bool = False) -> list[list[Turn]]:
    """Each rank's turns of a shuffled pass."""
    return [list(turns(EvenBatches(n, batch_size, drop_last), shuffled(n, 5), 9,
                       partial(parts_of, rank=rank, size=size, bound=bound), first=first))
            for rank in range(size)]


def samples_by_batch(ranks: list[list[Turn]]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for rank in ranks:
        for turn in rank:
            found.setdefault(turn.batch, []).extend(turn.indices[: turn.share.rows].tolist())
    return found


@quick
@given(n=st.integers(1, 400), batch_size=st.integers(1, 60), size=st.integers(1, 6), other=st.integers(1, 6),
       bound=st.none() | st.integers(1, 9), cut=st.floats(0, 1), drop_last=st.booleans())
def test_pass_is_the_same_for_every_world_size_and_resumes_anywhere(
        n: int, batch_size: int, size: int, other: int, bound: int | None, cut: float, drop_last: bool) -> None:
    """The ranks' slices together are the global batches of the order, also where another world size goes on."""
    order = shuffled(n, 5).at(np.arange(n)).tolist()
    batches = [order[start:start + batch_size] for start in range(0, n, batch_size)]
    if drop_last and len(batches[-1]) < batch_size:
        batches.pop()
    stop = int(cut * len(batches))
    before = samples_by_batch(turns_of(n, batch_size, size, bound, 0, drop_last))
    after = samples_by_batch(turns_of(n, batch_size, other, bound, stop, drop_last))
    assert [before[number] for number in range(stop)] == batches[:stop]
    assert [after[number] for number in sorted(after)] == batches[stop:]


@quick
@given(n=st.integers(1, 60), batch_size=st.integers(1, 20), size=st.integers(2, 6))
def test_turns_without_rows_have_a_stand_in(n: int, batch_size: int, size: int) -> None:
    """A rank without rows gets the first sample of the global batch as a stand-in, and every rank has as many turns."""
    ranks = turns_of(n, batch_size, size, None, 0)
    order = shuffled(n, 5).at(np.arange(n)).tolist()
    assert len({len(rank) for rank in ranks}) == 1
    for turn in itertools.chain(*ranks):
        assert len(turn.indices) == len(turn.keys) == max(1, turn.share.rows)
        if turn.share.rows == 0:
            assert turn.indices.tolist() == [order[turn.batch * batch_size]]


def test_keys_belong_to_samples() -> None:
    """A sample's key is a function of the pass and its index alone, or with its position where it comes twice."""
    options = {"parts_of": partial(parts_of, rank=0, size=1, bound=None), "first": 0}
    for order in (InOrder(), shuffled(50, 1)):
        for turn in turns(EvenBatches(50, 7, False), order, mix(3, 4), **options):
            assert turn.keys.tolist() == [mix(3, 4, index) for index in turn.indices.tolist()]
    same = Weighted(np.array([1.0]), 1)
    keys = [key for turn in turns(EvenBatches(50, 7, False), same, 3, key_by_position=True, **options)
            for key in turn.keys.tolist()]
    assert len(set(keys)) == 50
