"""The report of a stall or of a lost rank: where each rank is, what it waits for, and why, likely"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rankwise.watchdog.cause import likely_cause
from rankwise.watchdog.parting import parting
from rankwise.watchdog.state import Call, Doing, RankState
from rankwise.world import ranks_in_words


def compose(states: Sequence[RankState], headline: str, folder: Path) -> str:
    """The report: what happened, a paragraph for the ranks in each place, the likely cause and what to do."""
    cause = likely_cause(states)
    return "\n  ".join([headline, *_standing(states), *_differing(states), f"Likely cause: {cause.text}", cause.remedy,
                        f"The stacks of all ranks: {_near(folder)}"])


def _standing(states: Sequence[RankState]) -> Iterator[str]:
    """A line for all ranks of which the same is to be said."""
    alike: dict[RankState, list[RankState]] = {}
    for state in states:
        alike.setdefault(replace(state, rank=0, idle_seconds=0.0, calls=()), []).append(state)
    for together in alike.values():
        one, ranks = together[0], ranks_in_words([state.rank for state in together])
        if one.doing is Doing.SILENT:
            yield f"{ranks}: no answer; last heard of in step {one.steps}."
        elif one.can_move:
            idle = min(state.idle_seconds for state in together)
            yield f"{ranks}, step {one.steps}: {_told(one)}; last progress {idle:.0f} s ago."
        else:
            yield f"{ranks}, step {one.steps}: {one.how}{_at(one)}."


def _told(state: RankState) -> str:
    doing = {Doing.WAITS: "waiting", Doing.READS: "reading data", Doing.ALONE: "working alone", Doing.WORKS: "working"}
    wait = f" in {_numbered(state.wait)}" if state.doing is Doing.WAITS and state.wait is not None else ""
    inside = f" (in {state.inside})" if state.inside else ""
    workers = f"; in its data workers at {' and '.join(state.workers)}" if state.workers else ""
    how = f"; {state.how}" if state.how else ""
    return f"{doing[state.doing]}{wait}{_at(state)}{inside}{workers}{how}"


def _at(state: RankState) -> str:
    """Where it stands in the user's code, with the lines that it was called from; nothing where that is unknown."""
    return f" at {', called from '.join(state.places[:3])}" if state.places else ""


def _differing(states: Sequence[RankState]) -> Iterator[str]:
    """The first collective that differed, as one of the odd ranks and one of the others called it."""
    found = parting(states)
    if found is None:
        return
    other = next(rank for rank in found.calls if rank not in found.odd)
    for rank in sorted((found.odd[0], other)):
        yield f"Collective {found.number} of rank {rank} was {found.calls[rank].placed}."


def _numbered(call: Call) -> str:
    return call.what if call.number is None else f"{call.what}, collective {call.number},"


def _near(folder: Path) -> Path:
    """The folder as it is called from here."""
    try:
        return folder.relative_to(Path.cwd())
    except ValueError:
        return folder
