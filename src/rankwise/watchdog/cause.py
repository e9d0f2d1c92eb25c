"""The likely cause of a stall or of a lost rank, from what all ranks said of themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rankwise.watchdog.parting import parting
from rankwise.watchdog.state import Doing, RankState
from rankwise.world import listed, ranks_in_words

States = Sequence[RankState]


@dataclass(frozen=True)
class Cause:
    """`ranks` are those to look at; `text` says what is likely wrong, `remedy` what to do about it."""

    name: str
    ranks: tuple[int, ...]
    text: str
    remedy: str


def likely_cause(states: States) -> Cause:
    """The first of the known causes that fits, the most certain ones first."""
    return next(cause for find in _FINDERS if (cause := find(states)) is not None)


def _failed(states: States) -> Cause | None:
    ranks = _at(states, Doing.FAILED)
    if not ranks:
        return None
    return Cause("failed", ranks, f"{ranks_in_words(ranks)} failed, and the others wait for {_it(ranks)}.",
                 "See its error.")


def _silent(states: States) -> Cause | None:
    ranks = _at(states, Doing.SILENT)
    if not ranks:
        return None
    return Cause("silent", ranks, f"{ranks_in_words(ranks)} did not answer: the process was killed or stopped, holds "
                 "Python's lock, or its machine or the network to it is lost.",
                 "See its log file, and the state of its machine.")


def _ended(states: States) -> Cause | None:
    ranks = _at(states, Doing.RETURNED)
    if not ranks or not _at(states, Doing.WAITS):
        return None
    return Cause("uneven", ranks, f"Uneven number of steps: {_who(ranks)} ended after step "
                 f"{_steps(states, ranks)}, and {_who(_at(states, Doing.WAITS))} went on.",
                 "Give every rank the same number of batches (run.loader does; DistributedSampler pads to it), and let "
                 "no rank leave the loop by itself: agree first (run.agree).")


def _reads(states: States) -> Cause | None:
    ranks = _at(states, Doing.READS)
    if not ranks:
        return None
    return Cause("data", ranks, f"The data: {_who(ranks)} {_waits(ranks)} for a batch.",
                 "Look at what the data set waits for there: a file, a lock, a download, a worker process.")


def _alone(states: States) -> Cause | None:
    first, others = _running(states)[:1], _running(states)[1:]
    if not first or first[0].rank != 0 or first[0].doing is not Doing.WORKS or len(others) < 2:
        return None
    if any(state.doing is not Doing.WAITS for state in others):
        return None
    return Cause("alone", (0,), "Rank 0 works alone, and the others wait for it.",
                 "Let long work of rank 0 stand in `with run.alone() as mine:`, where the others wait without a limit, "
                 "or give --stall-timeout more.")


def _parted(states: States) -> Cause | None:
    found = parting(states)
    if found is None:
        return None
    if found.is_of_shape:
        return Cause("shape", found.odd,
                     f"Collective {found.number} has tensors of another shape or kind on some ranks.",
                     "Give it tensors of one shape and dtype on every rank, in the same order.")
    branch = "a branch that depends on the rank"
    if found.odd == (0,):
        branch = "work that rank 0 does alone" if len(found.calls) > 2 else f"{branch}, or work that rank 0 does alone"
    what = f"The ranks went different ways from collective {found.number} on"
    if found.left_out is not None:
        rank, other = found.left_out
        what = f"Rank {rank} called {found.calls[rank].placed}, which rank {other} did not"
    return Cause("branch", found.odd, f"{what}: {branch}.",
                 "Every rank must call the same collectives in the same order. The forward of a wrapped model is one "
                 "too: evaluate on every rank, or through the module itself (model.module).")


def _elsewhere(states: States) -> Cause | None:
    ranks = _at(states, Doing.WORKS)
    if not ranks or not _at(states, Doing.WAITS):
        return None
    return Cause("branch", ranks, f"A rank-dependent branch, or slow work: {_who(ranks)} did not come where "
                 "the others wait.", "See that every rank comes by there; let long work of one rank stand in `with "
                 "run.alone() as mine:`.")


def _in_others(states: States) -> Cause | None:
    waiting = [state for state in states if state.doing is Doing.WAITS]
    by_place: dict[tuple[str, ...], list[int]] = {}
    for state in waiting:
        by_place.setdefault(state.places, []).append(state.rank)
    if len(by_place) < 2:
        return None
    ranks = tuple(min((len(each), each) for each in by_place.values())[1])
    return Cause("branch", ranks, "A rank-dependent branch, or an uneven number of steps: the ranks wait in different "
                 "places.", "Every rank must call the same collectives in the same order.")


def _network(states: States) -> Cause | None:
    if not _at(states, Doing.WAITS):
        return None
    return Cause("network", (), "All ranks wait in the same place: the network between them, or a device.",
                 "Try the link between the machines, and --timeout; on one machine look at the memory that is left.")


def _unknown(states: States) -> Cause:
    return Cause("unknown", (), "Nothing moves, and no rank waits for another.",
                 "Look at each line above at which a rank stands. Give --stall-timeout more where such work "
                 "takes its time.")


_FINDERS: tuple[Callable[[States], Cause | None], ...] = (
    _failed, _silent, _reads, _parted, _ended, _alone, _elsewhere, _in_others, _network, _unknown)


def _at(states: States, doing: Doing) -> tuple[int, ...]:
    return tuple(state.rank for state in states if state.doing is doing)


def _running(states: States) -> list[RankState]:
    return [state for state in states if state.can_move]


def _steps(states: States, ranks: tuple[int, ...]) -> str:
    return listed(sorted({state.steps for state in states if state.rank in ranks}))


def _who(ranks: tuple[int, ...]) -> str:
    """The ranks, within a sentence."""
    return ranks_in_words(ranks).lower()


def _it(ranks: tuple[int, ...]) -> str:
    return "it" if len(ranks) == 1 else "them"


def _waits(ranks: tuple[int, ...]) -> str:
    return "waits" if len(ranks) == 1 else "wait"
