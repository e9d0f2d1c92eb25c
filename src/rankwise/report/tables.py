"""The tables of a report: what happened when, each rank's step, settings and environment."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rankwise import quantities
from rankwise.history import Checkpoint, End, Event, Split, Start
from rankwise.page import Cell, Column, Table
from rankwise.report.means import of_rank
from rankwise.report.view import View
from rankwise.settings import Settings, option
from rankwise.stepparts import PARTS

_CHECKPOINTS = 20   # that are listed, the latest ones


def happenings(view: View) -> Table:
    """Starts, checkpoints and ends of a run, in order."""
    left_out = {id(event) for event in view.history.checkpoints[:-_CHECKPOINTS]}
    rows: list[list[Cell]] = [
        [what, event.step, event.epoch + 1, moment(event.time), _time(view.timeline.seconds(event)), remark]
        for event in view.history.events if id(event) not in left_out for what, remark in _told(event, view)]
    columns = [Column("event"), Column("step", is_number=True), Column("epoch", is_number=True), Column("when (UTC)"),
               Column("after running for", is_number=True), Column("remark")]
    return Table(f"{view.name}: starts, checkpoints and ends", columns, rows)


def _told(event: Event, view: View) -> list[tuple[str, str]]:
    if isinstance(event, Start):
        laid_out = f"mode {event.mode}, {event.devices} device{'s' * (event.devices != 1)}"
        if event is view.history.events[0]:
            return [("start", laid_out)]
        silence = quantities.seconds(_silence_before(event, view))
        return [("restart", f"attempt {event.attempt + 1}, {laid_out}; after {silence} without a word")
                if event.attempt else ("resumed", laid_out)]
    if isinstance(event, Checkpoint):
        return [("checkpoint", event.path)]
    return [(event.how, "")] if isinstance(event, End) else []


def _silence_before(start: Start, view: View) -> float | None:
    before = [event.time for event in view.history.events[:view.history.events.index(start)] if event.time is not None]
    return None if start.time is None or not before else start.time - before[-1]


def moment(at: float | None) -> str:
    """A date and time of day."""
    return "not known" if at is None else time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at))


def ranks(view: View, splits: Sequence[Split]) -> Table:
    """The mean step of each rank over these records, which are of one layout; what nobody measured has no column."""
    means = [of_rank(splits, rank) for rank in range(len(splits[-1].ranks))]
    parts: dict[str, list[Cell]] = {
        "step": [quantities.seconds(mean.step_seconds) for mean in means],
        **{phase: [quantities.seconds(mean.seconds[phase]) for mean in means] for phase in PARTS},
        "communication in all": [_time(mean.communication_total) for mean in means],
        "sent": [quantities.byte_count(mean.wire_bytes) for mean in means],
        "device busy": [None if mean.device_busy is None else quantities.percent(mean.device_busy) for mean in means],
        "FLOP/s": [mean.flops_per_second for mean in means],
        "peak memory": [", ".join(map(quantities.byte_count, rank.memory_bytes)) or None
                                          for rank in splits[-1].ranks],
    }
    known = {name: cells for name, cells in parts.items() if any(cell is not None for cell in cells)}
    return Table(f"{view.name}: the mean step of each rank",
                 [Column("rank"), *(Column(name, is_number=True) for name in known)],
                 [[f"rank {rank}", *(cells[rank] for cells in known.values())] for rank in range(len(means))])


def last_lines(caption: str, lines: Sequence[str]) -> Table:
    """What a run says at its end: lines that begin with a name."""
    rows = [line.partition("  ") for line in lines]
    return Table(caption, [Column("about"), Column("finding")],
                 [[name, text.strip()] if text else ["", name] for name, _, text in rows])


def _time(value: float | None) -> str | None:
    return None if value is None else quantities.seconds(value) if value else "0 s"


def settings(views: Sequence[View]) -> tuple[Table, Table]:
    """The settings that differ, from the default or between the runs; and all of them."""
    defaults = asdict(Settings())
    given = [dict(view.history.starts[-1].settings) for view in views]
    names = list(dict.fromkeys([*defaults, *(name for each in given for name in each)]))
    columns = [Column("setting"), Column("default"), *(Column(view.name) for view in views)]
    rows = {name: [option(name), _word(defaults, name), *(_word(each, name) for each in given)] for name in names}
    parted = {name for name, row in rows.items() if len(set(row[2:])) > 1}
    differing = [name for name, row in rows.items() if len(set(row[1:])) > 1]
    return (_marked("Settings that are not the default", columns, {name: rows[name] for name in differing}, parted),
            _marked("All settings", columns, rows, parted))


def environments(views: Sequence[View]) -> Table:
    """What each run was trained with, as its latest start found it."""
    found = [view.history.starts[-1].environment for view in views]
    names = dict.fromkeys(name for each in found for name in each)
    rows = {name: [name, *(_word(each, name) for each in found)] for name in names}
    parted = {name for name, row in rows.items() if len(set(row[1:])) > 1}
    return _marked("Environment", [Column("what"), *(Column(view.name) for view in views)], rows, parted)


def side_by_side(caption: str, views: Sequence[View], facts: Callable[[View], Mapping[str, Cell]]) -> Table:
    """A fact a row, a run a column."""
    found = [facts(view) for view in views]
    return Table(caption, [Column(""), *(Column(view.name) for view in views)],
                 [[name, *(each[name] for each in found)] for name in found[0]])


def _marked(caption: str, columns: Sequence[Column], rows: Mapping[str, Sequence[Cell]], parted: set[str]) -> Table:
    return Table(caption, columns, list(rows.values()),
                 marked=[number for number, name in enumerate(rows) if name in parted])


def _word(values: Mapping[str, Any], name: str) -> str:
    value = values.get(name)
    return "-" if value is None else ("on" if value else "off") if isinstance(value, bool) else str(value)
