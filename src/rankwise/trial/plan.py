"""What a trial is told to do: how long to measure, and where to leave what it found."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

_FILE = "trial.json"


@dataclass(frozen=True, kw_only=True)
class TrialPlan:
    """`steps` updates are measured after `warm_up` others; then the training ends. Results are left in `folder`.

    With `arrivals` each gradient's arrival in a backward pass is noted, which costs some microseconds a parameter.
    `is_plain` says that the script does not use rankwise, so that its steps are seen from outside.
    """

    folder: str
    steps: int
    warm_up: int
    arrivals: bool = False
    is_plain: bool = False

    def write(self) -> Path:
        """Keep this plan in its folder; returns the file."""
        file = Path(self.folder) / _FILE
        file.write_text(json.dumps(asdict(self)), encoding="utf-8")
        return file

    @classmethod
    def read(cls, file: Path) -> TrialPlan:
        return cls(**json.loads(file.read_text(encoding="utf-8")))
