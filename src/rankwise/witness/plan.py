"""What a witness is told to do: how long to watch, where to write, and what to change for an experiment."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

_FILE = "plan.json"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """`steps` updates are watched; a rank that makes none for `patience_seconds` gives up and says where it waits.

    `changes` are names of `rankwise.witness.changes`; `reference` is the folder of an earlier run's records, which some
    of them read.
    """

    folder: str
    steps: int
    seed: int = 0
    patience_seconds: float = 60.0
    changes: list[str] = field(default_factory=list)
    reference: str | None = None

    def write(self) -> Path:
        """Keep this plan in its folder; returns the file."""
        file = Path(self.folder) / _FILE
        file.write_text(json.dumps(asdict(self)), encoding="utf-8")
        return file

    @classmethod
    def read(cls, file: Path) -> Plan:
        return cls(**json.loads(file.read_text(encoding="utf-8")))


def record_file(folder: Path, rank: int) -> Path:
    """Where a rank writes what it sees, an entry a line."""
    return folder / f"rank{rank}.jsonl"


def tensor_file(folder: Path, moment: str) -> Path:
    """Where rank 0 keeps parameters and buffers; `moment` is `initial` or `final`."""
    return folder / f"{moment}.safetensors"
