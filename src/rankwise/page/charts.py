"""What a chart shows, as plain values: its axes, its series, and marks on its horizontal axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

Place = float | int | str | None
"""Where something stands on a horizontal axis: a number, or the name of a bar; None is a gap in a line."""

Kind = Literal["lines", "areas", "bars", "stacked bars"]


@dataclass(frozen=True)
class Axis:
    """`title` names the quantity and its unit: step time (ms). `from_zero` is of a vertical axis."""

    title: str
    is_log: bool = False
    from_zero: bool = True


@dataclass(frozen=True, kw_only=True)
class Series:
    """Values `y` at the places `x`; None is a value that is not known, and a gap in a line.

    `other_x` are the same places on the chart's other horizontal axis. `low` and `high` bound each value, where it is
    known how sure it is. Series of one `colour` (a number from 0) look alike in every chart; by default it is the place
    in the chart.
    """

    name: str
    x: Sequence[Place]
    y: Sequence[float | None]
    other_x: Sequence[Place] = ()
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()
    colour: int | None = None

    def __post_init__(self) -> None:
        for places in (self.y, *filter(len, (self.other_x, self.low, self.high))):
            if len(places) != len(self.x):
                raise ValueError(f"series {self.name}: {len(places)} values at {len(self.x)} places")


@dataclass(frozen=True, kw_only=True)
class Mark:
    """Events on the horizontal axis, each with a text: points at its foot, or (`is_line`) lines across the chart.

    Without a `colour` they are grey.
    """

    name: str
    x: Sequence[Place]
    texts: Sequence[str]
    other_x: Sequence[Place] = ()
    is_line: bool = False
    colour: int | None = None


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A chart; `description` is one sentence that says what is to be seen in it.

    With `other_x` the reader may choose between two horizontal axes, for all charts of the page at once.
    """

    kind: Kind
    title: str
    description: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    other_x: Axis | None = None
    marks: Sequence[Mark] = ()


def lines(title: str, description: str, **content: Any) -> Chart:
    """Values that change along the horizontal axis; the fields are those of Chart."""
    return Chart(kind="lines", title=title, description=description, **content)


def areas(title: str, description: str, **content: Any) -> Chart:
    """Parts of a whole that change along the horizontal axis, one upon the other."""
    return Chart(kind="areas", title=title, description=description, **content)


def bars(title: str, description: str, **content: Any) -> Chart:
    """A bar for each name on the horizontal axis; several series stand side by side."""
    return Chart(kind="bars", title=title, description=description, **content)


def stacked_bars(title: str, description: str, **content: Any) -> Chart:
    """Parts of a whole for each name on the horizontal axis, one upon the other."""
    return Chart(kind="stacked bars", title=title, description=description, **content)
