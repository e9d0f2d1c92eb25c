"""The page of one run, or of several side by side."""

from __future__ import annotations

from collections.abc import Sequence

from rankwise.history import FILE, History
from rankwise.page import Page, Section
from rankwise.report import account, curves, summary, tables
from rankwise.report.thinning import POINTS
from rankwise.report.timeline import of_same_names
from rankwise.report.view import Axes, View, views_of

_OWN = ("loss", "epoch_loss", "samples_per_second")
_CHARTS = 30   # of numbers that a script logs itself


def page_of(histories: Sequence[History], *, now: float) -> Page:
    """Everything that is known of these runs; `now` is in seconds since 1970."""
    views = views_of(histories)
    axes = Axes.of(views)
    title = f"Run {views[0].name}" if len(views) == 1 else f"{len(views)} runs side by side"
    lead = summary.sentence(views[0], now) if len(views) == 1 else ", ".join(view.name for view in views)
    page = Page(title, lead, values={"runs": [summary.as_values(view) for view in views]})
    _summary(page.section("Summary"), views, now)
    _logged(page.section("Loss and other numbers"), views, axes)
    _speed(page.section("Throughput"), views, axes)
    if any(view.history.splits for view in views):
        _split(page.section("Split of the step"), [view for view in views if view.history.splits], axes)
        page.section("Memory").chart(curves.memory([view for view in views if view.history.splits], axes))
    _happenings(page.section("Starts, checkpoints and ends"), views)
    if all(view.history.starts for view in views):
        _settings(page, views)
    _source(page.section("About this page"), views, axes)
    return page


def _summary(section: Section, views: Sequence[View], now: float) -> None:
    if len(views) == 1:
        section.facts(summary.facts(views[0]))
    else:
        names = dict.fromkeys(name for view in views for name in summary.facts(view))
        section.table(tables.side_by_side("The runs", views, lambda view: {
            name: summary.facts(view).get(name) for name in names}))
        section.points([f"{view.name}: {summary.sentence(view, now)}" for view in views])
    for view in views:
        lines = account.lines(view.history)
        if lines:
            when = "at its end" if view.history.end is not None else "up to its last entry"
            section.table(tables.last_lines(f"{view.name}, {when}", lines))


def _logged(section: Section, views: Sequence[View], axes: Axes) -> None:
    names = list(dict.fromkeys(name for view in views for name in of_same_names(view.history.numbers)))
    if "loss" in names:
        section.chart(curves.logged("loss", "Loss", "The mean over all ranks, of the steps since the entry before.",
                                    "loss", views, axes))
    if "epoch_loss" in names:
        section.chart(curves.logged("epoch_loss", "Loss of each epoch", "The mean over all ranks and steps of an "
                                    "epoch, at its end.", "loss", views, axes))
    others = [name for name in names if name not in _OWN]
    for name in others[:_CHARTS]:
        section.chart(curves.logged(name, name, "As the script logged it on rank 0.", name, views, axes))
    if len(others) > _CHARTS:
        section.paragraph(f"{len(others) - _CHARTS} more numbers are in {FILE}: {', '.join(others[_CHARTS:])}.")
    if not names:
        section.paragraph("No number is on record.")
    section.points([text for view in views for name in names if (text := _not_finite(view, name))])


def _not_finite(view: View, name: str) -> str:
    """That a number was none, and since when; nothing where it always was one."""
    entries = [event for event in view.history.numbers if name in event.values]
    bad = [event.step for event in entries if event.values[name] is None]
    return (f"{view.name}: {name} was no finite number in {len(bad)} of {len(entries)} entries, first at step {bad[0]}."
            if bad else "")


def _speed(section: Section, views: Sequence[View], axes: Axes) -> None:
    if any("samples_per_second" in event.values for view in views for event in view.history.numbers):
        section.chart(curves.logged("samples_per_second", "Samples per second", "Over all devices together, in each "
                                    "interval of the log; higher is better.", "samples/s", views, axes, from_zero=True))
    else:
        section.paragraph("No throughput is on record.")


def _split(section: Section, views: Sequence[View], axes: Axes) -> None:
    if len(views) > 1:
        section.chart(curves.splits_side_by_side(views))
    for view in views:
        latest = summary.of_latest_layout(view)
        section.chart(curves.split_over_time(view, axes)).table(tables.ranks(view, latest))
        section.paragraph(f"{view.name}: the latest {sum(split.steps for split in latest):,} steps on record; clock: "
                          f"{latest[-1].clock}; communication in all, its hidden part included: "
                          f"{latest[-1].communication_from}. The first step of each start, in which much is made, "
                          "is left out.")


def _happenings(section: Section, views: Sequence[View]) -> None:
    for view in views:
        section.table(tables.happenings(view))


def _settings(page: Page, views: Sequence[View]) -> None:
    differing, every = tables.settings(views)
    section = page.section("Settings")
    if differing.rows:
        section.table(differing)
    else:
        section.paragraph("Every setting is the default.")
    if len(views) > 1:
        section.paragraph("Rows in which the runs differ are marked.")
    section.table(every, folded=f"All {len(every.rows)} settings")
    page.section("Environment").table(tables.environments(views))


def _source(section: Section, views: Sequence[View], axes: Axes) -> None:
    section.points([f"{view.name}: {len(view.history.events)} lines of {FILE}" + (
        f"; {view.history.damaged} could not be read and are left out" if view.history.damaged else "")
        for view in views])
    if curves.is_thinned(views):
        section.paragraph(f"Lines of more than {POINTS} numbers are thinned for the screen: their ends, peaks "
                          f"and troughs are kept. {FILE} has them all.")
    if not axes.in_epochs:
        section.paragraph("No epoch has ended in some run, so that the length of an epoch is not known: steps take "
                          "their place.")
    if not axes.in_seconds:
        section.paragraph("The log has no times: it is of an older rankwise.")
    else:
        section.paragraph("Seconds count from the first start. The time between a launch and a later one that resumes "
                          "it is left out; the time of a restart after a failure is in.")
