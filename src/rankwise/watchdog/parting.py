"""Where the ranks parted: the first collective that they did not call alike, from torch's records of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rankwise.watchdog.state import Call, RankState


@dataclass(frozen=True)
class Parting:
    """What each rank called as the first collective that was not the same for all, by rank.

    `left_out` are two ranks: the first called something there that the second went by, and whose call it made later.
    """

    number: int
    calls: dict[int, Call]
    left_out: tuple[int, int] | None = None

    @property
    def odd(self) -> tuple[int, ...]:
        """The ranks that called what fewest did; of several such groups the one with the lowest rank."""
        alike: dict[tuple[str, str], list[int]] = {}
        for rank, call in self.calls.items():
            alike.setdefault((call.what, call.place), []).append(rank)
        return tuple(min((len(ranks), ranks) for ranks in alike.values())[1])

    @property
    def is_of_shape(self) -> bool:
        """Whether all called one thing from one place, with different tensors."""
        return len({(call.what.partition(" ")[0], call.place) for call in self.calls.values()}) == 1


def parting(states: Sequence[RankState]) -> Parting | None:
    """The collective after the last one that all ranks called alike; None where there is no such.

    Ranks without a record are left out. The branches of `if rank == 0` may call one collective from two lines; what
    differs in the place alone counts only where the ranks differ from there on to the end.
    """
    numbered = {state.rank: {call.number: call for call in state.calls if call.number is not None}
                for state in states if state.calls}
    if len(numbered) < 2:
        return None
    common = sorted(set.intersection(*(set(calls) for calls in numbered.values())))
    for position, number in enumerate(common):
        calls = {rank: by_number[number] for rank, by_number in numbered.items()}
        later = [[by_number[each] for by_number in numbered.values()] for each in common[position:]]
        if not _same_kind(list(calls.values())) or not any(map(_same_place, later)):
            return Parting(number, calls, _left_out(numbered, number))
    return None


def _left_out(numbered: dict[int, dict[int, Call]], number: int) -> tuple[int, int] | None:
    for rank, calls in numbered.items():
        later = {(call.what, call.place) for each, call in calls.items() if each > number}
        for other, others_calls in numbered.items():
            call = others_calls[number]
            if not _alike(call, calls[number]) and (call.what, call.place) in later:
                return rank, other
    return None


def _alike(call: Call, other: Call) -> bool:
    return (call.what, call.place) == (other.what, other.place)


def _same_kind(calls: list[Call]) -> bool:
    return len({call.what for call in calls}) == 1


def _same_place(calls: list[Call]) -> bool:
    return len({call.place for call in calls}) == 1
