"""Tables of plain values, and the numbers of a chart as one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rankwise.page.charts import Chart, Series

Cell = str | float | int | None


@dataclass(frozen=True)
class Column:
    """A column's heading, with its unit; one of numbers is aligned at the right."""

    title: str
    is_number: bool = False


@dataclass(frozen=True)
class Table:
    """Rows of cells, of which the first names its row. `marked` are the numbers of rows that stand out."""

    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    marked: Sequence[int] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"table {self.caption}: a row of {len(row)} cells in {len(self.columns)} columns")


def shown(cell: Cell) -> str:
    """A cell as text: numbers with six digits; None was not measured, and NaN and infinity are not finite."""
    if isinstance(cell, str):
        return cell
    if cell is None:
        return "not measured"
    if not math.isfinite(cell):
        return "not finite"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return f"{cell:,}" if isinstance(cell, int) else f"{cell:,.6g}"


def numbers_of(chart: Chart) -> Table:
    """What a chart shows: a column for each series where they share their places, else a row for each value."""
    first = chart.series[0] if chart.series else None
    if first is not None and all(list(each.x) == list(first.x) and not each.low for each in chart.series):
        columns = [*_axes(chart), *(Column(each.name, is_number=True) for each in chart.series)]
        rows = [[*_places(chart, first, index), *(each.y[index] for each in chart.series)]
                for index in _known(first)]
        return Table(f"{chart.title}: {chart.y.title}", columns, rows)
    columns = [Column("series"), *_axes(chart), *(Column(name, is_number=True) for name in (chart.y.title,
                                                                                           *_bounds(chart)))]
    return Table(chart.title, columns, [
        [each.name, *_places(chart, each, index), each.y[index], *(_at(bound, index) for bound in
                                                                   (each.low, each.high)[:len(_bounds(chart))])]
        for each in chart.series for index in _known(each)])


def _known(series: Series) -> list[int]:
    """The places that are no gaps."""
    return [index for index, place in enumerate(series.x) if place is not None]


def _axes(chart: Chart) -> list[Column]:
    are_numbers = chart.kind in ("lines", "areas")
    return [Column(axis.title, is_number=are_numbers) for axis in (chart.x, chart.other_x) if axis is not None]


def _places(chart: Chart, series: Series, index: int) -> list[Cell]:
    return [_at(places, index) for places in (series.x, series.other_x)[:1 if chart.other_x is None else 2]]


def _bounds(chart: Chart) -> list[str]:
    return ["from", "to"] if any(each.low for each in chart.series) else []


def _at(cells: Sequence[Cell], index: int) -> Cell:
    return cells[index] if index < len(cells) else None
