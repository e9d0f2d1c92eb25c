"""What a rank reports of an examination: plain values, which come to rank 0 as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

FORMING = "forming the group of all ranks"   # the step in which the backend first connects them


@dataclass(frozen=True, kw_only=True)
class Wrong:
    """A result that was not what it must be, as this rank saw it; `source` is whose part was wrong, where that shows.
    """

    collective: str
    dtype: str
    elements: int
    source: int | None = None


@dataclass(frozen=True, kw_only=True)
class Tally:
    """One kind of collective: the dtypes that came out, those that the backend refuses, and how many were run."""

    claimed: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    runs: int = 0


@dataclass(frozen=True, kw_only=True)
class Timing:
    """All-reduces of one size over all ranks: the median of several, in seconds for one."""

    size_bytes: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Pair:
    """What one machine says of its link to another one; `problem` is why the two could not exchange anything.

    `clock_offset_seconds` is how much later the other one's clock is.
    """

    other: int
    problem: str = ""
    is_wrong: bool = False
    latency_seconds: float | None = None
    bytes_per_second: float | None = None
    clock_offset_seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class Report:
    """One rank's examination. `step` is the last it was in, `problem` what it met there.

    A rank that sends no report has one made of what is known of it: with `has_joined` and `step` alone.
    """

    rank: int
    machine: int = 0
    has_joined: bool = True
    is_through: bool = False
    step: str = ""
    problem: str = ""
    own_words: tuple[str, ...] = ()                     # names and addresses of its machine
    software: dict[str, str] = field(default_factory=dict)
    backend: str = ""
    device: str = ""
    tallies: dict[str, Tally] = field(default_factory=dict)
    wrongs: tuple[Wrong, ...] = ()
    timings: tuple[Timing, ...] = ()
    copy_bytes_per_second: float | None = None          # from memory to memory, by one rank
    work_seconds: tuple[float, ...] = ()                # the same work, several times
    pairs: tuple[Pair, ...] = ()
    machine_findings: tuple[dict[str, Any], ...] = ()   # of the checks on this machine, by one rank of it

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Report:
        return cls.of(json.loads(text))

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Report:
        """The report of these plain values."""
        rebuilt = dict(values)
        rebuilt["tallies"] = {name: Tally(**{**tally, "claimed": tuple(tally["claimed"]),
                                             "refused": tuple(tally["refused"])})
                              for name, tally in values["tallies"].items()}
        for name, kind in (("wrongs", Wrong), ("timings", Timing), ("pairs", Pair)):
            rebuilt[name] = tuple(kind(**each) for each in values[name])
        for name in ("own_words", "work_seconds", "machine_findings"):
            rebuilt[name] = tuple(values[name])
        return cls(**rebuilt)
