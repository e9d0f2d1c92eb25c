"""A run as a page shows it: its name and colour there, and where its events stand on the page's horizontal axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rankwise.history import Event, History
from rankwise.page import Axis
from rankwise.report.timeline import Timeline


@dataclass(frozen=True, kw_only=True)
class View:
    """One run on a page; `colour` is its number among the runs of the page."""

    name: str
    colour: int
    history: History
    timeline: Timeline


@dataclass(frozen=True)
class Axes:
    """The horizontal axes that all charts of a page have: epochs (steps where no epoch has ended), and seconds."""

    in_epochs: bool
    in_seconds: bool

    @classmethod
    def of(cls, views: Sequence[View]) -> Axes:
        """Those that every run can be shown on."""
        return cls(in_epochs=all(view.timeline.has_epochs for view in views),
                   in_seconds=all(view.timeline.has_seconds for view in views))

    @property
    def fields(self) -> dict[str, Any]:
        """The axes as fields of a chart."""
        return {"x": Axis("epochs" if self.in_epochs else "steps"),
                "other_x": Axis("seconds") if self.in_seconds else None}

    def places(self, view: View, events: Sequence[Event]) -> dict[str, Any]:
        """Where events of a run stand, as fields of a series or of marks."""
        place: Callable[[Event], float] = view.timeline.epochs if self.in_epochs else lambda event: float(event.step)
        found: dict[str, Any] = {"x": [place(event) for event in events]}
        if self.in_seconds:
            found["other_x"] = [view.timeline.seconds(event) for event in events]
        return found


def views_of(histories: Sequence[History]) -> list[View]:
    """A view of each run, under its folder's name; where two have the same name, under the folder itself."""
    names = [history.name for history in histories]
    return [View(name=history.name if names.count(history.name) == 1 else str(history.folder), colour=number,
                 history=history, timeline=Timeline(history)) for number, history in enumerate(histories)]
