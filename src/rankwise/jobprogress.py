"""The progress line of a command that runs one job after another: which one runs, and how far. On a terminal only."""

from __future__ import annotations

import sys
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar


class Progress:
    """Shows on the error stream, so that the result can go to a file."""

    def __init__(self, steps: int, jobs: int) -> None:
        console = Console(file=sys.stderr)
        self._steps, self._jobs, self._what = steps, jobs, ""
        self._job = 0
        self._bar = Bar(TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(),
                        TextColumn("steps"), TimeElapsedColumn(), console=console, transient=True,
                        disable=not console.is_terminal)
        self._task = self._bar.add_task("", total=steps)

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._bar.stop()

    def tell(self, what: str, steps: int) -> None:
        """`what` runs now, and has made `steps` steps."""
        if what != self._what:
            self._what, self._job = what, self._job + 1
            self._jobs = max(self._jobs, self._job)
            self._bar.reset(self._task, total=self._steps)
        self._bar.update(self._task, description=f"{self._job}/{self._jobs} {what}", completed=min(steps, self._steps))
