"""What a run came to, in a few facts and in a sentence: how it ended, how far it got, and how fast it was."""

from __future__ import annotations

import itertools
import statistics
from typing import Any

from rankwise import quantities
from rankwise.history import Split
from rankwise.page import Cell
from rankwise.report import account
from rankwise.report.means import of_rank
from rankwise.report.tables import moment
from rankwise.report.view import View

_HOW = {"finished": "Finished", "failed": "Failed", "preempted": "Was asked to end, and saved,",
        "interrupted": "Was interrupted"}


def sentence(view: View, now: float) -> str:
    """How the run ended, or that it is not known; `now` is in seconds since 1970."""
    history = view.history
    running = view.timeline.seconds(history.events[-1])
    after = "" if running is None else f", after running for {quantities.seconds(running)}"
    if history.end is not None:
        return f"{_HOW.get(history.end.how, history.end.how)} at step {history.end.step}{after}."
    word = "" if history.last_time is None else (f" Its last word is of {moment(history.last_time)} UTC, "
                                                f"{_age(max(0.0, now - history.last_time))} before this "
                                                "page was made.")
    return ("No end is on record: the run was killed, or is still running. It is known up to step "
            f"{history.last_step}{after}.{word}")


def _age(seconds: float) -> str:
    days = seconds / 86400
    return f"{days:.0f} days" if days >= 2 else quantities.seconds(seconds)


def facts(view: View) -> dict[str, Cell]:
    """The same facts for every run, some of them unknown."""
    history = view.history
    start = history.starts[-1] if history.starts else None
    rate = throughput(view)
    return {
        "ended": history.end.how if history.end else "no end on record",
        "target": start.target if start else None,
        "mode": start.mode if start else None,
        "devices": start.devices if start else None,
        "steps": history.last_step,
        "epochs that ended": len([each for each in history.numbers if "epoch_loss" in each.values]),
        "ran for": _time(view.timeline.seconds(history.events[-1])),
        "throughput, median": None if rate is None else quantities.rate(rate, "samples"),
        **{f"last {name}": "not finite" if value is None else value for name, value in last_values(view).items()
           if name != "samples_per_second"},
        "checkpoints on record": len(history.checkpoints),
        "restarts after a failure": sum(event.attempt > 0 for event in history.starts),
    }


def _time(value: float | None) -> str | None:
    return None if value is None else quantities.seconds(value)


def throughput(view: View) -> float | None:
    """The median over the intervals of the log, in samples a second."""
    found = [value for event in view.history.numbers
             if (value := event.values.get("samples_per_second")) is not None]
    return statistics.median(found) if found else None


def last_values(view: View) -> dict[str, float | None]:
    """Each number that was logged, as it was last."""
    found: dict[str, float | None] = {}
    for event in view.history.numbers:
        found.update(event.values)
    return found


def as_values(view: View) -> dict[str, Any]:
    """The run for programs: plain numbers in seconds and bytes, and texts."""
    history = view.history
    latest = of_latest_layout(view)
    return {
        "name": view.name, "ended": history.end.how if history.end else None, "step": history.last_step,
        "seconds": view.timeline.seconds(history.events[-1]), "samples_per_second": throughput(view),
        "last": last_values(view), "damaged_lines": history.damaged,
        "starts": [{"step": each.step, "attempt": each.attempt, "mode": each.mode, "devices": each.devices}
                   for each in history.starts],
        "checkpoints": [{"step": each.step, "path": each.path} for each in history.checkpoints],
        "lines": account.lines(history),
        "ranks": [{**mean.seconds, "step": mean.step_seconds, "communication_total": mean.communication_total,
                   "wire_bytes": mean.wire_bytes, "memory_bytes": list(latest[-1].ranks[rank].memory_bytes)}
                  for rank in (range(len(latest[-1].ranks)) if latest else ()) for mean in [of_rank(latest, rank)]],
    }


def of_latest_layout(view: View) -> list[Split]:
    """The latest splits that have the same ranks: a resumed run may have others than before."""
    splits = view.history.splits
    latest = itertools.takewhile(lambda split: len(split.ranks) == len(splits[-1].ranks), reversed(splits))
    return list(latest)[::-1]
