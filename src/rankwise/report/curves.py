"""The charts of a report: what was logged, throughput, the split of the step, and memory, as the runs went on."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rankwise.history import Event, Split, Start
from rankwise.page import Axis, Chart, Mark, Series, areas, lines, stacked_bars
from rankwise.report.means import mean_over_ranks, merged
from rankwise.report.thinning import POINTS, kept
from rankwise.report.timeline import of_same_names
from rankwise.report.view import Axes, View
from rankwise.stepparts import PARTS

_AREAS = 200   # parts of an area chart; each is a mean of its own


def logged(name: str, title: str, description: str, unit: str, views: Sequence[View], axes: Axes, *,
           from_zero: bool = False) -> Chart:
    """A number that was logged, a line for each run, with restarts and checkpoints."""
    known = [(view, [event for event in view.history.numbers if name in event.values]) for view in views]
    series = [_line(view, axes, view.name, view.colour, events, [_number(event.values[name]) for event in events])
              for view, events in known if events]
    marks = [mark for view in views for mark in _marks(view, axes, is_alone=len(views) == 1)]
    return lines(title, description, y=Axis(unit, from_zero=from_zero), series=series, marks=marks, **axes.fields)


def _line(view: View, axes: Axes, name: str, colour: int, events: Sequence[Event],
          values: Sequence[float]) -> Series:
    chosen = kept(values)
    return Series(name=name, colour=colour, y=[values[number] for number in chosen],
                  **axes.places(view, [events[number] for number in chosen]))


def _number(value: float | None) -> float:
    """In the log, null is what was no finite number."""
    return math.nan if value is None else value


def is_thinned(views: Sequence[View]) -> bool:
    """Whether some line has more numbers than are drawn."""
    return any(len(events) > POINTS for view in views for events in of_same_names(view.history.numbers).values())


def _marks(view: View, axes: Axes, *, is_alone: bool) -> list[Mark]:
    """Where the ranks were started again, and, of a run by itself, where it was saved."""
    again = [event for event in view.history.starts if event is not view.history.events[0]]
    restarts, resumed = ([event for event in again if (event.attempt > 0) is by_launcher]
                         for by_launcher in (True, False))
    found = [_mark("restart", view, axes, restarts, is_alone), _mark("resumed", view, axes, resumed, is_alone)]
    if is_alone:
        found.append(Mark(name="checkpoint", texts=[f"checkpoint {each.path}" for each in view.history.checkpoints],
                          **axes.places(view, view.history.checkpoints)))
    return [mark for mark in found if mark.x]


def _mark(name: str, view: View, axes: Axes, starts: Sequence[Start], is_alone: bool) -> Mark:
    return Mark(name=name if is_alone else f"{view.name}: {name}", is_line=True,
                colour=None if is_alone else view.colour,
                texts=[f"{name} from step {start.step}, attempt {start.attempt + 1}" for start in starts],
                **axes.places(view, starts))


def split_over_time(view: View, axes: Axes) -> Chart:
    """Where the time of a step went, as the run went on: the mean over its ranks."""
    means = merged(view.history.splits, _AREAS)
    scale, unit = time_unit([each.step_seconds for each in means])
    places = axes.places(view, [each.event for each in means])
    return areas(f"Split of the step: {view.name}",
                 "The mean over the ranks. Communication is the part that is not hidden behind backward.",
                 y=Axis(f"{unit} a step"), series=[
                     Series(name=phase, y=[each.seconds[phase] * scale for each in means], **places)
                     for phase in PARTS], **axes.fields)


def splits_side_by_side(views: Sequence[View]) -> Chart:
    """The mean split of each run."""
    means = [(view.name, mean_over_ranks(view.history.splits)) for view in views if view.history.splits]
    scale, unit = time_unit([mean.step_seconds for _, mean in means])
    return stacked_bars("Split of the step, run by run", "The mean over all ranks and steps that are on record.",
                        x=Axis("run"), y=Axis(f"{unit} a step"), series=[
                            Series(name=phase, x=[name for name, _ in means],
                                   y=[mean.seconds[phase] * scale for _, mean in means]) for phase in PARTS])


def memory(views: Sequence[View], axes: Axes) -> Chart:
    """Peak memory: of each device of one run, or of the fullest device of each of several."""
    scale, unit = byte_unit(max((_fullest(split) for view in views for split in view.history.splits), default=0.0))
    if len(views) > 1:
        what = "The peak of the fullest device so far"
        series = [_line(view, axes, view.name, view.colour, view.history.splits,
                        [_fullest(split) * scale for split in view.history.splits]) for view in views]
    else:
        what = "The peak of each device so far"
        series = [_of_device(views[0], axes, rank, device, number, scale)
                  for number, (rank, device) in enumerate(_devices(views[0]))]
    return lines("Memory", f"{what}; on a CPU, of the rank's process in host memory.", y=Axis(f"memory ({unit})"),
                 series=series, **axes.fields)


def _fullest(split: Split) -> float:
    return max((peak for rank in split.ranks for peak in rank.memory_bytes), default=0.0)


def _devices(view: View) -> list[tuple[int, int]]:
    """Rank and device, of all that are on record."""
    return sorted({(rank, device) for split in view.history.splits for rank, each in enumerate(split.ranks)
                   for device in range(len(each.memory_bytes))})


def _of_device(view: View, axes: Axes, rank: int, device: int, colour: int, scale: float) -> Series:
    is_one_each = all(number == 0 for _, number in _devices(view))
    splits = [split for split in view.history.splits
              if rank < len(split.ranks) and device < len(split.ranks[rank].memory_bytes)]
    return _line(view, axes, f"rank {rank}" if is_one_each else f"rank {rank}, device {device}", colour, splits,
                 [split.ranks[rank].memory_bytes[device] * scale for split in splits])


def time_unit(seconds: Sequence[float]) -> tuple[float, str]:
    """The unit for these times, and how many of it a second has."""
    largest = max(seconds, default=0.0)
    return (1.0, "s") if largest >= 1.0 else (1e3, "ms") if largest >= 1e-3 else (1e6, "us")


def byte_unit(largest: float) -> tuple[float, str]:
    """The unit for amounts of memory up to this, and how many of it a byte is."""
    return (1e-9, "GB") if largest >= 1e9 else (1e-6, "MB") if largest >= 1e6 else (1e-3, "kB")
