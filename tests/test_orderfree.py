"""Sums whose bits do not depend on order, grouping or the number of ranks, against exact rational arithmetic."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ranks import run_groups
from rankwise.data.partition import even_slices
from rankwise.group import Group
from rankwise.orderfree.fixedpoint import Grids
from rankwise.orderfree.pipeline import Pipeline
from rankwise.world import World

Shards = list[list[torch.Tensor | None]]
FLOATS = st.floats(width=32, allow_nan=True, allow_infinity=True)
DOUBLES = st.floats(allow_nan=True, allow_infinity=True)


def alone() -> Group:
    return Group(World(), torch.device("cpu"))


def summed(group: Group, shards: Shards, like: list[torch.Tensor]) -> list[torch.Tensor | None]:
    """What the ranks get of the shards that they own; odd ranks send what they have of the first bucket early."""
    whole = Pipeline(group, len(shards), like)
    edges = even_slices(len(shards), group.size)
    *first, last = shards[edges[group.rank]:edges[group.rank + 1]]
    for tensors in first:
        whole.add(tensors)
    if group.rank % 2:
        whole.send([last[index] for index in whole.buckets[0]])
        last = [None if index in whole.buckets[0] else tensor for index, tensor in enumerate(last)]
    sums, _ = whole.total(last)
    whole.close()
    return sums


def bits(tensor: torch.Tensor | None) -> Any:
    return None if tensor is None else (tensor.dtype, tuple(tensor.shape), tensor.view(-1).view(torch.uint8).tolist())


def on_ranks(group: Group, shards: Shards, like: list[torch.Tensor]) -> list[Any]:
    return [bits(total) for total in summed(group, shards, like)]


def gradients(shards: int) -> tuple[Shards, list[torch.Tensor]]:
    """Tensors of several sizes and kinds, of magnitudes that fall on several grids; some of them are lacking."""
    random = np.random.default_rng(3)
    like = [torch.zeros(7, 5), torch.zeros(0), torch.zeros(()), torch.zeros(33, dtype=torch.float64), torch.zeros(3),
            torch.zeros(2, 2), torch.zeros(11, dtype=torch.bfloat16), torch.zeros(5)]
    whole: Shards = []
    for shard in range(shards):
        tensors: list[torch.Tensor | None] = [
            torch.as_tensor(random.normal(size=each.shape) * 10.0 ** random.integers(-9, 9)).to(each.dtype)
            for each in like]
        tensors[4] = None                                   # lacking everywhere
        tensors[5] = tensors[5] if shard % 2 else None      # in some shards
        tensors[7] = torch.tensor([0.0, 1e-42, -math.inf if shard == 1 else 1.0, math.nan if shard == 2 else 3.0,
                                   math.inf if shard in (1, 2) else 0.0])
        whole.append(tensors)
    return whole, like


@pytest.mark.parametrize("shards", [1, 2, 3, 4, 6])
def test_every_number_of_ranks_gets_the_same_bits(shards: int) -> None:
    """Of ragged tensors of several dtypes, with lacking ones, infinities and NaN; one rank's are the reference."""
    whole, like = gradients(shards)
    expected = on_ranks(alone(), whole, like)
    assert expected[4] is None
    assert sum(each is None for each in expected) == 1 + (shards == 1)
    for world in range(2, min(shards, 4) + 1):
        for found in run_groups(on_ranks, world, whole, like):
            assert found == expected


def test_a_float_sum_of_the_same_shards_depends_on_their_order() -> None:
    """So the test above can fail."""
    whole, _ = gradients(6)
    columns = torch.stack([tensors[0] for tensors in whole])  # type: ignore[misc]
    orders = {sum(columns[list(order)]).numpy().tobytes()  # type: ignore[union-attr]
              for order in itertools.islice(itertools.permutations(range(6)), 50)}
    assert len(orders) > 1


@settings(max_examples=200, deadline=None)
@given(values=st.lists(st.lists(FLOATS, min_size=3, max_size=3), min_size=1, max_size=9), order=st.randoms())
def test_order_does_not_matter(values: list[list[float]], order: Any) -> None:
    """Any float32, denormals and infinities too: a shuffled order has the same bits, and is right to a rounding."""
    like = [torch.zeros(3)]
    shards: Shards = [[torch.tensor(each)] for each in values]
    [first] = summed(alone(), shards, like)
    order.shuffle(shards)
    [second] = summed(alone(), shards, like)
    assert bits(first) == bits(second)
    assert first is not None
    for found, numbers in zip(first.tolist(), zip(*values, strict=True), strict=True):
        _require_near(found, numbers, max(abs(x) for each in values for x in each if math.isfinite(x)) if any(
            math.isfinite(x) for each in values for x in each) else 0.0, Fraction(1, 2**40))


def _require_near(found: float, numbers: tuple[float, ...], largest: float, share: Fraction) -> None:
    if not all(map(math.isfinite, numbers)):
        assert str(found) == str(sum(number for number in numbers if not math.isfinite(number)))
        return
    exact = sum(map(Fraction, numbers), Fraction(0))
    if abs(exact) >= Fraction(2) ** 128 * (1 - Fraction(1, 2**25)):
        assert math.isinf(found)
        return
    rounding = max(abs(exact) / 2**24, Fraction(2) ** -150)
    assert abs(Fraction(found) - exact) <= rounding + Fraction(largest) * share


@settings(max_examples=100, deadline=None)
@given(values=st.lists(st.lists(DOUBLES, min_size=2, max_size=2), min_size=1, max_size=8), order=st.randoms())
def test_float64_keeps_its_precision(values: list[list[float]], order: Any) -> None:
    """Sums of float64 are right to a rounding of the largest magnitude, and in any order the same."""
    like = [torch.zeros(2, dtype=torch.float64)]
    shards: Shards = [[torch.tensor(each, dtype=torch.float64)] for each in values]
    [first] = summed(alone(), shards, like)
    order.shuffle(shards)
    [second] = summed(alone(), shards, like)
    assert bits(first) == bits(second)
    assert first is not None
    for found, numbers in zip(first.tolist(), zip(*values, strict=True), strict=True):
        if all(map(math.isfinite, numbers)):
            exact = sum(map(Fraction, numbers), Fraction(0))
            largest = max((abs(Fraction(x)) for each in values for x in each if math.isfinite(x)), default=Fraction(0))
            if abs(exact) < Fraction(2) ** 1023:
                assert abs(Fraction(found) - exact) <= largest / 2**50 + Fraction(2) ** -1074
        else:
            assert str(found) == str(sum(number for number in numbers if not math.isfinite(number)))


@pytest.mark.parametrize("tail", [0.0, 1.0])
@pytest.mark.parametrize("shards", [2, 8, 64])
def test_the_sum_is_as_accurate_as_float32_addition(shards: int, tail: float) -> None:
    """Against float64, on gradients whose magnitudes lie close together, and on such that span orders of magnitude.

    Addition of two numbers cannot be bettered; of more it can.
    """
    random = np.random.default_rng(shards)
    numbers = random.normal(size=(shards, 20_000)) * 10.0 ** (tail * random.normal(size=20_000))
    values = torch.from_numpy(numbers).float()
    exact = values.double().sum(0)
    by_addition = torch.zeros(20_000)
    for each in values:
        by_addition += each
    [total] = summed(alone(), [[each] for each in values], [torch.zeros(20_000)])
    assert total is not None
    error, plain = (total.double() - exact).abs(), (by_addition.double() - exact).abs()
    assert error.norm() <= plain.norm() * (1 + 1e-9 if shards == 2 else 0.75)
    if not tail:   # one by one as well
        assert (error <= exact.abs() * 2**-24).all()


def test_the_largest_sums_do_not_overflow() -> None:
    """As many terms as there may be of the largest magnitude on a level, all of one sign."""
    for terms in (2, 3, 8, 100):
        top = math.nextafter(1.0, 0.0)
        [total] = summed(alone(), [[torch.tensor([top], dtype=torch.float64)] for _ in range(terms)],
                         [torch.zeros(1, dtype=torch.float64)])
        assert total is not None
        assert total.item() == pytest.approx(terms, rel=1e-15)
        grid = Grids(terms)
        integers = grid.integers(torch.tensor([np.nextafter(np.float32(1), np.float32(0))]), grid.level_of(0.99))
        assert integers[0].item() * terms < 2**63


def test_what_is_not_finite_is_the_same_everywhere() -> None:
    """+inf and -inf meet as NaN; one of them alone stays; other elements of the tensor are not touched."""
    shards: Shards = [[torch.tensor([math.inf, math.inf, -math.inf, math.nan, 1.0])],
                      [torch.tensor([-math.inf, 1.0, 2.0, math.inf, 2.0])]]
    [total] = summed(alone(), shards, [torch.zeros(5)])
    assert total is not None
    assert [str(each) for each in total.tolist()] == ["nan", "inf", "-inf", "nan", "3.0"]
