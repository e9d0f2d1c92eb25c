"""Which checkpoints are kept, for any sequence of saves and values; and how the two options are read."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise.checkpoint.retention import Retention
from rankwise.errors import UsageError
from rankwise.settings import Settings

VALUES = st.dictionaries(st.integers(0, 10_000), st.none() | st.floats(-10, 10).map(lambda value: round(value, 1)),
                         min_size=1, max_size=12)


@given(VALUES, st.integers(1, 5), st.booleans())
def test_the_newest_and_the_best_stay_and_nothing_else(values: dict[int, float | None], last: int,
                                                       larger_is_better: bool) -> None:
    """Against the definition, step by step: who is kept is among the newest, or nobody is better and none as good
    came before."""
    retention = Retention(last=last, metric="accuracy", larger_is_better=larger_is_better)
    superseded = retention.superseded(values)
    sign = 1 if larger_is_better else -1
    for step, value in values.items():
        is_recent = sum(other > step for other in values) < last
        is_best = value is not None and not any(
            other is not None and (sign * other > sign * value or (other == value and earlier < step))
            for earlier, other in values.items())
        assert (step in superseded) == (not is_recent and not is_best)
    assert max(values) not in superseded


@given(VALUES)
def test_without_a_bound_everything_stays(values: dict[int, float | None]) -> None:
    assert Retention(metric="accuracy").superseded(values) == set()


@given(st.lists(st.none() | st.floats(0, 1), min_size=1, max_size=12), st.integers(1, 3))
def test_removing_after_each_save_keeps_the_best_of_all_that_were(saved: list[float | None], last: int) -> None:
    """The best of the whole run is there at its end, though each decision saw only what was left."""
    retention = Retention(last=last, metric="accuracy", larger_is_better=True)
    kept: dict[int, float | None] = {}
    for step, value in enumerate(saved):
        kept[step] = value
        for each in retention.superseded(kept):
            del kept[each]
        assert len(kept) <= last + 1
    known = [value for value in saved if value is not None]
    if known:
        assert kept[saved.index(max(known))] == max(known)
    assert len(saved) - 1 in kept


@pytest.mark.parametrize(("given_", "expected"), [
    (None, (None, False)), ("accuracy", ("accuracy", True)), ("accuracy:min", ("accuracy", False)),
    ("val_loss", ("val_loss", False)), ("Loss:max", ("Loss", True)), ("perplexity", ("perplexity", False)),
    ("top1_error", ("top1_error", False)), ("mse", ("mse", False)), ("bleu:max", ("bleu", True)),
    ("warmth:min", ("warmth", False))])
def test_the_direction_is_the_one_given_or_that_of_the_name(given_: str | None,
                                                            expected: tuple[str | None, bool]) -> None:
    assert Settings(keep_best=given_).best_metric == expected


@pytest.mark.parametrize(("given_", "expected"), [
    (None, (None, None)), ("500", (500, None)), ("30s", (None, 30.0)), ("10min", (None, 600.0)),
    ("2h", (None, 7200.0))])
def test_the_interval_is_steps_or_a_time(given_: str | None, expected: tuple[int | None, float | None]) -> None:
    assert Settings(save_every=given_).save_interval == expected


@pytest.mark.parametrize("options", [{"save_every": "0"}, {"save_every": "-5"}, {"save_every": "10 min"},
                                     {"save_every": "soon"}, {"keep_best": ""}, {"keep_best": ":max"},
                                     {"keep_best": "accuracy:up"}, {"keep_best": "acuracy"}, {"keep_last": 0}])
def test_what_cannot_be_read_is_a_usage_error(options: dict[str, str]) -> None:
    name = "--" + next(iter(options)).replace("_", "-")
    with pytest.raises(UsageError, match=name):
        Settings(**options)


@pytest.mark.parametrize("options", [
    {"stall_timeout": "x"}, {"timeout": "x"}, {"grace_seconds": "5"}, {"resume": True}, {"name": 3}, {"init": 5},
    {"keep_best": True}, {"save_every": True}, {"mode": None, "keep_last": "3"}, {"seed": True}])
def test_a_value_of_another_type_is_a_usage_error(options: dict[str, Any]) -> None:
    """As a notebook may give it."""
    with pytest.raises(UsageError):
        Settings(**options)
