"""Numbers over all ranks: exact for unequal ranks, in the order of the data, and with no digit lost."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from ranks import outcomes, run_ranks
from rankwise.data.partition import even_slices
from rankwise.run import Run

VALUES = np.random.default_rng(7).normal(size=(11, 2))


def own_rows(run: Run) -> np.ndarray[Any, Any]:
    """Rank 0 has none, rank 1 three, rank 2 the rest; one rank has all."""
    if run.world_size == 1:
        return VALUES
    return [VALUES[:0], VALUES[:3], VALUES[3:]][run.rank]


def totals_of(run: Run) -> dict[str, Any]:
    rows = own_rows(run)
    own_mean = float(rows[:, 0].mean()) if len(rows) else math.nan
    found = {"mean of rows": run.mean(torch.from_numpy(rows)),
             "mean of float32": run.mean(torch.from_numpy(rows).float()),
             "mean of means": run.mean(own_mean, weight=len(rows)),
             "mean of counts": run.mean(torch.tensor([run.rank] * 2)),
             "sum": run.sum(0.1), "sum of a list": run.sum([0.1, 2.0]), "sum of integers": run.sum(2**53 + run.rank),
             "sum of flags": run.sum(torch.tensor([True, False]))}
    return {name: (value.dtype, value.tolist()) for name, value in found.items()}


def test_totals_are_exact_for_unequal_ranks() -> None:
    """Against numpy over all rows, on every rank; Python's floats keep their 53 digits, integers all of theirs."""
    for found in run_ranks(totals_of, 3):
        assert found["mean of rows"] == (torch.float64, pytest.approx(VALUES.mean(0).tolist(), abs=1e-15))
        assert found["mean of float32"][1] == pytest.approx(VALUES.astype(np.float32).astype(float).mean(0), abs=1e-15)
        assert found["mean of means"] == (torch.float64, pytest.approx(VALUES[:, 0].mean(), abs=1e-15))
        assert found["mean of counts"] == (torch.float64, 1.0)
        assert found["sum"] == (torch.float64, pytest.approx(0.3, abs=1e-16))
        assert found["sum of a list"] == (torch.float64, pytest.approx([0.3, 6.0], abs=1e-15))
        assert found["sum of integers"] == (torch.int64, 3 * 2**53 + 3)
        assert found["sum of flags"] == (torch.int64, [3, 0])


def mean_of_slices(run: Run) -> str:
    """The mean of a thousand numbers, of which each rank has its slice."""
    values = torch.from_numpy(np.random.default_rng(1).normal(size=1000))
    edges = even_slices(1000, run.world_size)
    return float(run.mean(values[edges[run.rank]:edges[run.rank + 1]])).hex()


def test_in_exact_mode_a_mean_of_rows_has_the_same_bits() -> None:
    """On 1, 2 and 3 ranks; and without it not, so the test can fail."""
    assert len({each for world in (1, 2, 3) for each in run_ranks(mean_of_slices, world, exact=6)}) == 1
    assert len({each for world in (1, 2, 3) for each in run_ranks(mean_of_slices, world)}) > 1


def gather(run: Run) -> list[list[int]]:
    """Of batches of 4 rows in two micro-batches: what is gathered in the loop, and after it."""
    found, own = [], []
    for rows in run.loader(torch.arange(11), 4, micro_batch=1):
        found.append(run.gather(rows).tolist())
        own.append(rows)
    return [*found, run.gather(torch.cat(own)).tolist()]


def test_rows_are_gathered_in_the_order_of_the_data() -> None:
    """On every rank: each turn's rows, and after the loop all of them, in order."""
    for found in run_ranks(gather, 3):
        *turns, whole = found
        assert whole == list(range(11))
        assert sorted(row for turn in turns for row in turn) == whole
        assert all(turn == sorted(turn) for turn in turns)


def one_number(run: Run) -> None:
    run.mean(3.0)


def test_a_mean_of_one_number_without_weight_is_refused() -> None:
    for text in outcomes(one_number, 2):
        assert "run.mean was given one number without a weight" in text
