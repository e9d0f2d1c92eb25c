"""What the ranks of one process group call, in order: each call is compared over the ranks before it runs."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from rankwise.collectives.calls import Call
from rankwise.errors import MisuseError, PeerError
from rankwise.world import listed, ranks_in_words

_SLICE_SECONDS = 1.0   # of a wait, in which Python cannot answer to Ctrl-C
_KEPT = 2              # calls that stay in the store: all ranks have passed the one before the last


class Conversation:
    """The calls of one process group, which has the ranks `ranks` of the world, `rank` among them.

    `store` carries them. A rank that waits longer than `limit_seconds` for another raises.
    """

    def __init__(self, store: dist.Store, name: str, ranks: Sequence[int], rank: int, limit_seconds: float) -> None:
        self._store: Any = store
        self._calls: Any = dist.PrefixStore(name, store)
        self._group = "" if name.startswith("default") else f" of the group of ranks {listed(ranks)}"
        self._ranks, self._rank, self._limit_seconds = list(ranks), rank, limit_seconds
        self._number = 0
        # For each rank: which call of the first rank met which other call of that rank, and as what number first.
        self._met: dict[int, dict[Call, dict[Call, int]]] = {each: {} for each in ranks}

    def compare(self, call: Call) -> None:
        """Tell `call` to the other ranks and hear theirs.

        Raises MisuseError on every rank where they do not fit together, PeerError where a rank does not come.
        """
        self._number += 1
        with self._answered():
            self._calls.set(self._key(self._number, self._rank), call.to_json())
            if self._number > _KEPT:
                self._calls.delete_key(self._key(self._number - _KEPT, self._rank))
            calls = {self._rank: call, **self._heard(call)}
        first = self._ranks[0]
        for rank in self._ranks[1:]:
            if calls[rank].what != calls[first].what:
                raise self._another_call(first, rank, calls)
            if calls[rank] != calls[first]:
                self._note_places(first, rank, calls[first], calls[rank])

    # Hearing the others

    def _heard(self, call: Call) -> dict[int, Call]:
        deadline = time.monotonic() + self._limit_seconds
        keys = {rank: self._key(self._number, rank) for rank in self._ranks if rank != self._rank}
        waited = False
        while not self._came(list(keys.values()), min(_SLICE_SECONDS, max(0.01, deadline - time.monotonic()))):
            if not waited:   # for a rank that waits for this one in another group
                waited = True
                self._store.set(f"waits/{self._rank}", f"{self._numbered(self._number)}, {call.told()}")
            ended = {rank: self._said("ended", rank) for rank in keys}   # asked first: a call precedes its rank's end
            missing = [rank for rank, key in keys.items() if not self._calls.check([key])]
            if missing and (time.monotonic() > deadline or any(ended[rank] for rank in missing)):
                raise self._missing(call, missing, ended)
        if waited:
            self._store.set(f"waits/{self._rank}", "")
        return dict(zip(keys, map(Call.from_json, self._values(list(keys.values()))), strict=True))

    def _came(self, keys: list[str], seconds: float) -> bool:
        try:
            self._calls.wait(keys, timedelta(seconds=seconds))
        except RuntimeError:
            self._calls.check(keys)   # raises where it was not the time that ran out
            return False
        return True

    def _values(self, keys: list[str]) -> list[bytes]:
        if self._calls.has_extended_api():
            return list(self._calls.multi_get(keys))
        return [self._calls.get(key) for key in keys]

    def _said(self, about: str, rank: int) -> str:
        key = f"{about}/{rank}"
        return str(self._store.get(key).decode()) if self._store.check([key]) else ""

    @contextlib.contextmanager
    def _answered(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise PeerError(f"Rank {self._rank} compared {self._numbered(self._number)} with the other ranks.",
                            f"The store that carries the calls did not answer: {str(error).splitlines()[0][:200]}.",
                            "The process that held it has ended: rank 0, or its launcher. See its log.") from error

    def _missing(self, call: Call, missing: list[int], ended: dict[int, str]) -> PeerError:
        where = [self._standing(rank, ended[rank]) for rank in missing]
        here = [rank for rank in self._ranks if rank not in missing]
        limit = "" if any(ended[rank] for rank in missing) else f" within {self._limit_seconds:g} s"
        return PeerError(
            f"{ranks_in_words(missing)} did not come to {self._numbered(self._number)}{limit}. {ranks_in_words(here)} "
            f"wait{'s' * (len(here) == 1)} there in {call.told()}.", "\n  ".join(where),
            "Every rank must call every collective: look for a loop that runs less often there, a branch that only "
            "some ranks take, or work that takes longer than --timeout.")

    def _standing(self, rank: int, ended: str) -> str:
        parts = ["has been in none before"]
        key = self._key(self._number - 1, rank)
        if self._number > 1 and self._calls.check([key]):
            parts = [f"was last in {self._numbered(self._number - 1)}, {Call.from_json(self._calls.get(key)).told()}"]
        waits = self._said("waits", rank)
        if waits:
            parts.append(f"then waited in {waits}")
        if ended:
            parts.append(f"then {ended}")
        return f"Rank {rank} {'; '.join(parts)}."

    # Judging what was heard

    def _another_call(self, first: int, rank: int, calls: dict[int, Call]) -> MisuseError:
        pair = (calls[first], calls[rank])
        return MisuseError(
            f"Ranks {first} and {rank} call different things as {self._numbered(self._number)}.",
            f"Rank {first}: {pair[0].told(pair)}.\n  Rank {rank}: {pair[1].told(pair)}.",
            "Every rank must call the same collectives in the same order, with tensors of one shape and dtype: look "
            "for a branch or a loop that differs between ranks before these two lines.")

    def _note_places(self, first: int, rank: int, mine: Call, other: Call) -> None:
        """The same call from another place: the branches of `if rank == 0` are fine, calls in another order are not.

        The order was swapped where call A met B and now B meets A, in two steps or by way of others.
        """
        met = self._met[rank]
        before = _way(met, other, mine)
        if before:
            raise self._swapped(first, rank, before, (mine, other))
        if other not in met.setdefault(mine, {}):
            met[mine][other] = self._number
            if self._rank == first and _mixes(mine, first, rank):
                logging.getLogger("rankwise").warning(
                    "rankwise: %s: rank %d calls %s, and rank %d %s. They are taken for one collective.",
                    self._numbered(self._number), first, mine.told([other]), rank, other.told([mine]))

    def _swapped(self, first: int, rank: int, before: tuple[Call, Call], now: tuple[Call, Call]) -> MisuseError:
        lines = [f"Collective {number}: rank {first} called {mine.told([other])}, rank {rank} {other.told([mine])}."
                 for number, (mine, other) in ((self._met[rank][before[0]][before[1]], before), (self._number, now))]
        return MisuseError(
            f"Ranks {first} and {rank} call the same collectives in another order{self._group}.",
            "\n  ".join([*lines, "They have one shape and dtype, so values of different meaning are put together."]),
            "Bring these lines into one order on all ranks: sort what is iterated over (sets and files have no order "
            "of their own), and let no branch before them depend on the rank or on its data.")

    def _key(self, number: int, rank: int) -> str:
        return f"{number}/{rank}"

    def _numbered(self, number: int) -> str:
        return f"collective {number}{self._group}"


def _way(met: dict[Call, dict[Call, int]], start: Call, end: Call) -> tuple[Call, Call] | None:
    """The first step on a way from `start` to `end` over calls that met; None where there is none."""
    for step in met.get(start, ()):
        reached, edge = {step}, [step]
        while edge:
            edge = [each for call in edge for each in met.get(call, ()) if each not in reached]
            reached.update(edge)
        if end in reached:
            return start, step
    return None


def _mixes(call: Call, *ranks: int) -> bool:
    """Whether calls from two places may put together what does not belong together."""
    return call.root not in ranks and "barrier" not in call.what
