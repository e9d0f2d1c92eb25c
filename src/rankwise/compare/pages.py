"""A comparison as one HTML page: the verdict first, then speed, where a step goes, and what each layout costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rankwise.compare.result import Result, Row
from rankwise.compare.verdict import Verdict
from rankwise.compare.words import difference, headline, noise_in_words, notes
from rankwise.page import Axis, Cell, Chart, Column, Page, Series, Table, bars, lines, stacked_bars
from rankwise.quantities import byte_count
from rankwise.stepparts import PARTS

_MILLISECONDS = 1e3
_MEGABYTES = 1e-6
_PERCENT = 100.0


def page_of(result: Result, verdict: Verdict, values: dict[str, Any]) -> Page:
    """The page; `values` are those of compare.json, for programs that read it."""
    page = Page(f"Compare {result.target}", headline(result), values=values)
    page.section("Verdict").paragraph(verdict.use).points(verdict.lines[1:])
    _speed(page, result, verdict.best)
    _split(page, result)
    _cost(page, result)
    section = page.section("How it was measured").paragraph(noise_in_words(result)).points(notes(result))
    section.facts(_facts(result))
    section.table(_rounds(result), folded="Every round")
    return page


def _speed(page: Page, result: Result, best: Row) -> None:
    rows, names = result.rows, [str(row.layout) for row in result.rows]
    section = page.section("Speed")
    section.chart(bars(
        "Step time", "The median over the rounds, with the lowest and the highest round; shorter is better.",
        x=Axis("layout"), y=Axis("step time (ms)"), series=[Series(
            name="step time", x=names, y=[row.step_seconds * _MILLISECONDS for row in rows],
            low=[row.lowest_step_seconds * _MILLISECONDS for row in rows],
            high=[row.highest_step_seconds * _MILLISECONDS for row in rows])]))
    if max(row.layout.devices for row in rows) > 1:
        section.chart(_scaling(rows))
    section.table(_table("Speed; the layout to use is marked", rows, {
        "step (ms)": lambda row: _scaled(row.step_seconds, _MILLISECONDS),
        "lowest (ms)": lambda row: _scaled(row.lowest_step_seconds, _MILLISECONDS),
        "highest (ms)": lambda row: _scaled(row.highest_step_seconds, _MILLISECONDS),
        "samples/s": lambda row: _scaled(row.samples_a_second),
        "speed-up": lambda row: _scaled(row.speed_up),
        "efficiency (%)": lambda row: "-" if row.layout.devices == 1 else _scaled(row.efficiency, _PERCENT),
        "noise (± %)": lambda row: "-" if row.is_baseline else _scaled(row.noise, _PERCENT),
        "more than noise": lambda row: "-" if row.is_baseline else "yes" if row.is_beyond_noise else "no"},
        marked=[number for number, row in enumerate(rows) if row.layout == best.layout]))


def _scaling(rows: Sequence[Row]) -> Chart:
    """Speed-up over devices, a line for each mode and precision that begins at its one device."""
    families: dict[str, list[Row]] = {}
    for row in rows:
        if row.layout.devices > 1:
            alone = [each for each in rows if each.layout.devices == 1 and each.layout.amp == row.layout.amp]
            families.setdefault(row.layout.family, alone).append(row)
    most = max(row.layout.devices for row in rows)
    return lines(
        "Speed-up", f"Times as fast as {rows[0].layout}; the perfect line is as many times as there are devices.",
        x=Axis("devices"), y=Axis("speed-up"), series=[*(
            Series(name=name, x=[row.layout.devices for row in found], y=[row.speed_up for row in found],
                   low=[row.lowest_speed_up for row in found], high=[row.highest_speed_up for row in found])
            for name, found in families.items()), Series(name="perfect", x=[1, most], y=[1.0, float(most)])])


def _split(page: Page, result: Result) -> None:
    rows = [row for row in result.rows if row.split is not None]
    if not rows:
        return
    names = [str(row.layout) for row in rows]
    section = page.section("Where a step goes")
    section.chart(stacked_bars(
        "Split of the step", "Time of each part, mean over the ranks; communication is what backward does not hide.",
        x=Axis("layout"), y=Axis("time a step (ms)"), series=[
            Series(name=phase, x=names, y=[(row.split or {})[phase] * _MILLISECONDS for row in rows])
            for phase in PARTS]))
    section.table(_table("Communication", rows, {
        "not hidden (ms)": lambda row: _scaled((row.split or {})["communication"], _MILLISECONDS),
        "of that waiting for slower ranks (ms)": lambda row: _scaled(row.waiting_seconds, _MILLISECONDS),
        "all (ms)": lambda row: _scaled(row.communication_seconds, _MILLISECONDS) if row.communication_meaning else "-",
        "sent by a rank, a step": lambda row: byte_count(row.wire_bytes),
        "what it is": lambda row: row.communication_meaning or "none"}))


def _cost(page: Page, result: Result) -> None:
    rows, names = result.rows, [str(row.layout) for row in result.rows]
    section = page.section("What it costs")
    section.chart(bars(
        "Memory", "The peak of the first device and of the one with the most; on a CPU that of a process.",
        x=Axis("layout"), y=Axis("memory (MB)"), series=[
            Series(name="first", x=names, y=[_scaled(row.first_memory_bytes, _MEGABYTES) for row in rows]),
            Series(name="most", x=names, y=[_scaled(row.most_memory_bytes, _MEGABYTES) for row in rows])]))
    section.table(_table("Memory, start-up and loss", rows, {
        "memory, first (MB)": lambda row: _scaled(row.first_memory_bytes, _MEGABYTES),
        "memory, most (MB)": lambda row: _scaled(row.most_memory_bytes, _MEGABYTES),
        "start-up (s)": lambda row: _scaled(row.start_up_seconds),
        "loss after the last step": lambda row: row.loss,
        "relative difference": difference}))


def _table(caption: str, rows: Sequence[Row], columns: dict[str, Callable[[Row], Cell]],
           marked: Sequence[int] = ()) -> Table:
    texts = ("more than noise", "what it is")
    return Table(caption, [Column("layout"), *(Column(name, is_number=name not in texts) for name in columns)],
                 [[str(row.layout), *(value(row) for value in columns.values())] for row in rows], marked)


def _scaled(value: float | None, by: float = 1.0) -> float | None:
    """A number in a table's unit, with four digits: more are noise."""
    return None if value is None else float(f"{value * by:.4g}")


def _rounds(result: Result) -> Table:
    """The step time of each layout in each round, the control among them."""
    found = result.measurements
    series = [(str(found.baseline.layout), found.baseline), (f"{found.control.layout}, again", found.control),
              *((str(each.layout), each) for each in found.others if each.rounds)]
    columns = [Column("layout"), *(Column(f"round {number + 1} (ms)", is_number=True)
                                   for number in range(result.rounds))]
    return Table("Median step time of each job", columns, [
        [name, *(_scaled(each.rounds[number].step_seconds if number in each.rounds else None, _MILLISECONDS)
                 for number in range(result.rounds))] for name, each in series])


def _facts(result: Result) -> dict[str, Cell]:
    machine = result.machine
    return {"device": f"{machine.name} ({machine.kind})", "cores": machine.cores, "torch": machine.torch,
            "Python": machine.python, "system": machine.platform}
