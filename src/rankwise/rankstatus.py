"""What a rank says of itself each second, in a file of its own, for whoever watches the run from outside."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class RankStatus:
    """One rank at one moment.

    `state` says in words what it does, `phase` names the part of a step that is under way, if that is known. `time` is
    in seconds since 1970; `idle_seconds` have gone by since the last sign of progress; `steps_per_second` is of the
    last half minute. `memory_bytes` are those of each device that the rank drives, on a CPU its process's host memory.
    `pid` and `launcher_pid` are processes of `host`. `has_ended` says that the rank will write no more.
    """

    rank: int
    world_size: int
    attempt: int
    host: str
    pid: int
    launcher_pid: int
    time: float
    state: str
    phase: str = ""
    step: int = 0
    epoch: int | None = None
    steps_per_second: float | None = None
    idle_seconds: float = 0.0
    memory_bytes: tuple[int, ...] = ()
    has_ended: bool = False

    def write(self, folder: Path) -> None:
        """Replace this rank's file in this folder at once. Raises OSError."""
        path = folder / f"rank{self.rank}.json"
        folder.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.part")
        temporary.write_text(json.dumps(asdict(self)), "utf-8")
        temporary.replace(path)


def read(folder: Path) -> list[RankStatus]:
    """What the ranks say that write into this folder, in order of rank; a file that cannot be read is passed over."""
    found = []
    for path in folder.glob("rank*.json"):
        try:
            values = json.loads(path.read_text("utf-8"))
            found.append(RankStatus(**{**values, "memory_bytes": tuple(values["memory_bytes"])}))
        except (OSError, ValueError, TypeError, KeyError):
            continue
    return sorted(found, key=lambda status: status.rank)
