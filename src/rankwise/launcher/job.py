"""What the ranks of one launch run, kept in a private folder that their processes read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rankwise.launcher.target import Target

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

    @classmethod
    def of(cls, target: Target, arguments: Sequence[str], *, has_terminal: bool = True, can_save: bool = True) -> Job:
        """What runs a target with these options of its own."""
        return cls(script=None if target.module else str(target.path), module=target.module,
                   argv=[str(target.path), *arguments], has_terminal=has_terminal, can_save=can_save)

    def write(self, folder: Path) -> Path:
        """Keep this job in `folder`; returns its file."""
        file = folder / _FILE
        file.write_text(json.dumps(asdict(self)), encoding="utf-8")
        return file

    @classmethod
    def read(cls, file: Path) -> Job:
        return cls(**json.loads(file.read_text(encoding="utf-8")))
