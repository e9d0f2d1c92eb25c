"""What part of a global batch a loop body holds: the word that data, step and modes share."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class MicroBatch:
    """One turn of the loop body on one rank.

    `rows` may be 0: a rank with less to do takes part with an empty micro-batch. `global_rows` counts the samples of
    the whole global batch over all ranks and micro-batches; `is_first` and `is_last` are the same on every rank.
    """

    rows: int
    global_rows: int
    is_first: bool = True
    is_last: bool = True
    shard: int | None = None
