"""What one rank says of itself when all ranks are asked where they stand."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import Enum


class Doing(str, Enum):
    """What a rank is at."""

    WAITS = "waits"       # in a collective, for other ranks
    READS = "reads"       # in its data set or its loader
    WORKS = "works"       # anywhere else
    ALONE = "alone"       # declared work, for which the others wait
    RETURNED = "returned"
    FAILED = "failed"
    SILENT = "silent"     # it did not answer


@dataclass(frozen=True, kw_only=True)
class Call:
    """A collective that a rank called: `what` names it, and `place` is the innermost frame of the user's code.

    `number` counts those of one process group; None where torch keeps no record of them.
    """

    what: str
    place: str = ""
    number: int | None = None

    @property
    def placed(self) -> str:
        return f"{self.what} at {self.place}" if self.place else self.what


@dataclass(frozen=True, kw_only=True)
class RankState:
    """Where a rank stands.

    `places` are the frames of the user's code, innermost first, and `inside` the innermost frame below them, of ours or
    of a library; `workers` are the places of its data workers. `steps` are its updates of the weights, `idle_seconds`
    is the time since its last sign of progress. `how` says how it ended.
    """

    rank: int
    doing: Doing
    places: tuple[str, ...] = ()
    inside: str = ""
    workers: tuple[str, ...] = ()
    wait: Call | None = None
    calls: tuple[Call, ...] = ()
    steps: int = 0
    idle_seconds: float = 0.0
    how: str = ""

    @property
    def can_move(self) -> bool:
        """Whether this rank is under way, as far as is known."""
        return not self.has_ended and self.doing is not Doing.SILENT

    @property
    def has_ended(self) -> bool:
        return self.doing in (Doing.RETURNED, Doing.FAILED)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> RankState:
        found = json.loads(text)
        found["doing"] = Doing(found["doing"])
        found["places"], found["workers"] = tuple(found["places"]), tuple(found["workers"])
        found["wait"] = Call(**found["wait"]) if found["wait"] else None
        found["calls"] = tuple(Call(**call) for call in found["calls"])
        return cls(**found)
