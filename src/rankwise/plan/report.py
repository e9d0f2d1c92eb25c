"""A plan on a terminal: a table of steps, one of memory, and what they mean in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

from rankwise.plan.findings import Result, batch, findings
from rankwise.plan.memory import LAYOUTS
from rankwise.plan.prediction import Step
from rankwise.quantities import byte_count, percent, seconds


def show(console: Console, result: Result) -> None:
    """Both tables and all sentences."""
    plan = result.plan
    title = f"{result.target}: mode ddp, a global batch of {plan.global_batch}; one device measured, the rest predicted"
    points = (f"- {text}" for text in (*findings(result), *batch(result)))
    for content in (title, _steps(result), "", _memory(result), "", *points):
        console.print(content, highlight=False, markup=False)


def _steps(result: Result) -> Table:
    names = ("devices", "slice", "step", "range", "samples/s", "efficiency", "not hidden")
    table = _table(names, ([f"{step.devices:,}", _slice(step), seconds(step.step_seconds),
                            _range(step), f"{step.samples_per_second:,.0f}", percent(step.efficiency),
                            seconds(step.exposed_seconds)] for step in result.steps))
    table.caption = "slice: most samples of a device; not hidden: communication after the end of backward"
    if any(step.is_extrapolated for step in result.steps):
        table.caption += "\n*: fewer or more samples at once than were measured"
    return table


def _slice(step: Step) -> str:
    size = -(-step.rows // step.micro_batches)
    return (f"{step.micro_batches} x " if step.micro_batches > 1 else "") + f"{size}{'*' * step.is_extrapolated}"


def _range(step: Step) -> str:
    """`3.31 - 4.98 ms`."""
    least, most = seconds(step.least_seconds), seconds(step.most_seconds)
    number, unit = least.rsplit(" ", 1)
    return f"{number if most.split()[-1] == unit else least} - {most}"


def _memory(result: Result) -> Table:
    cells = ([f"{step.devices:,}", *(f"{byte_count(step.device_bytes[name])}, {byte_count(step.wire_bytes[name])}"
                                     for name in LAYOUTS)] for step in result.steps)
    table = _table(["devices", *LAYOUTS], cells)
    meanings = "; ".join(f"{name}: {layout.meaning}" for name, layout in LAYOUTS.items())
    table.caption = f"memory of a device, and the bytes that it sends in a step\n{meanings}"
    return table


def _table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", caption_justify="left", caption_style="")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table
