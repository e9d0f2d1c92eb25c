"""A comparison on a terminal: speed, where a step goes, and what each layout costs, a table each; then the verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table

from rankwise.compare.result import Result, Row
from rankwise.compare.verdict import Verdict
from rankwise.compare.words import difference, headline, noise_in_words, notes, share
from rankwise.quantities import byte_count, percent, seconds
from rankwise.stepparts import PARTS

Columns = dict[str, Callable[[Row], str]]

_SPEED: Columns = {
    "step": lambda row: seconds(row.step_seconds),
    "spread": lambda row: share((row.highest_step_seconds - row.lowest_step_seconds) / row.step_seconds),
    "samples/s": lambda row: f"{row.samples_a_second:,.0f}" if row.samples_a_second is not None else "-",
    "speed-up": lambda row: f"{row.speed_up:.2f}" + ("" if row.is_baseline else f" ± {share(row.noise)}"),
    "efficiency": lambda row: percent(row.efficiency),
    "> noise": lambda row: "-" if row.is_baseline else "yes" if row.is_beyond_noise else "no",
}
_COST: Columns = {
    "memory, first": lambda row: byte_count(row.first_memory_bytes),
    "most": lambda row: byte_count(row.most_memory_bytes),
    "start-up": lambda row: seconds(row.start_up_seconds),
    "last loss": lambda row: _loss(row.loss),
    "difference": difference,
}


def show(console: Console, result: Result, verdict: Verdict) -> None:
    """The tables, what their columns mean, and the verdict."""
    rows = result.rows
    console.print(f"{headline(result)}\n", highlight=False)
    _print(console, rows, _SPEED)
    console.print(f"{noise_in_words(result)}\n", highlight=False)
    if any(row.split for row in rows):
        _print(console, [row for row in rows if row.split], _phases())
        console.print("Share of a step, mean over the ranks; communication: what backward does not hide, and in "
                      "brackets all of it.\n", highlight=False)
    _print(console, rows, _COST)
    for note in notes(result):
        console.print(note, highlight=False, markup=False)
    console.print()
    for line in verdict.lines:
        console.print(line, highlight=False, markup=False, style="bold" if line is verdict.use else None)


def _print(console: Console, rows: Sequence[Row], columns: Columns) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("layout", no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(str(row.layout), *(show(row) for show in columns.values()))
    console.print(table)


def _loss(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}" if math.isfinite(value) else "not finite"


def _phases() -> Columns:
    return {phase: lambda row, phase=phase: _share(row, phase) for phase in PARTS}   # type: ignore[misc]


def _share(row: Row, phase: str) -> str:
    assert row.split is not None
    whole = sum(row.split.values())
    said = percent(row.split[phase] / whole)
    if phase == "communication" and row.communication_seconds is not None:
        return f"{said} ({percent(row.communication_seconds / whole)})"
    return said
