"""What the ranks of one launch run, kept in a private folder that their processes read."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

_FILE = "job.json"


@dataclass(frozen=True, kw_only=True)
class Job:
    """A script, a module or a shipped function, with what `sys.argv` and `sys.path` are to be there.

    Exactly one of `script`, `module` and `function` is set; `function` is the file that holds it, and
    `sources` the lines of code that stands in no file, by the name that its tracebacks give. With `has_terminal` rank 0
    shares the launcher's output; without, its output is in its log file alone. A job that cannot save
    is interrupted when it is asked to end.
    """

    script: str | None = None
    module: str | None = None
    function: str | None = None
    argv: list[str] = field(default_factory=list)
    path: list[str] = field(default_factory=list)
    sources: dict[str, list[str]] = field(default_factory=dict)
    has_terminal: bool = True
    can_save: bool = True

    def write(self, folder: Path) -> Path:
        """Keep this job in `folder`; returns its file."""
        file = folder / _FILE
        file.write_text(json.dumps(asdict(self)), encoding="utf-8")
        return file

    @classmethod
    def read(cls, file: Path) -> Job:
        return cls(**json.loads(file.read_text(encoding="utf-8")))
