"""What rank 0 shows: a progress line on a terminal, plain lines elsewhere, and one line for each finished epoch."""

from __future__ import annotations

from collections.abc import Mapping

import rich.console
import rich.progress
from rich.text import Text

from rankwise.monitor.progress import Progress


class Console:
    """Standard output. A terminal gets a line that is redrawn; a file or a notebook gets only lines that stay."""

    def __init__(self) -> None:
        self._rich = rich.console.Console(force_jupyter=False)
        self._live: rich.progress.Progress | None = None
        self._task = rich.progress.TaskID(0)

    @property
    def redraw_seconds(self) -> float:
        """Least time between two calls of `show`; drawing a line takes about a millisecond."""
        return 0.25 if self._rich.is_terminal else 10.0

    @property
    def is_live(self) -> bool:
        """Whether a progress line is on the terminal now."""
        return self._live is not None

    def say(self, text: str) -> None:
        """A line that stays, above the progress line."""
        self._rich.print(Text(text), soft_wrap=True)

    def show(self, now: Progress) -> None:
        """The middle of an epoch."""
        tail = "  ".join([f"loss {number(now.loss)}", f"{now.samples_per_second:,.0f} samples/s", *_left(now)])
        if not self._rich.is_terminal:
            self.say(f"{_head(now)}  {tail}")
            return
        live = self._live or self._start()
        live.update(self._task, completed=now.batch, total=now.batches, head=_head(now), tail=tail, refresh=True)

    def _start(self) -> rich.progress.Progress:
        columns = (rich.progress.TextColumn("{task.fields[head]}"), rich.progress.BarColumn(bar_width=24),
                   rich.progress.TextColumn("{task.fields[tail]}"))
        self._live = rich.progress.Progress(*columns, console=self._rich, auto_refresh=False, transient=True)
        self._task = self._live.add_task("", head="", tail="")
        self._live.start()
        self._rich.show_cursor(True)   # a killed process would leave it hidden
        return self._live

    def end_epoch(self, end: Progress, logged: Mapping[str, float]) -> None:
        """The line of an epoch: its mean loss, its pace, and what was logged in it."""
        self.close()
        pace = [f"loss {number(end.loss)}", f"{end.samples_per_second:,.0f} samples/s", f"{end.seconds:.1f} s"]
        metrics = [f"{name} {number(value)}" for name, value in logged.items()]
        self.say("  ".join([_head(end), *pace, *metrics]))

    def close(self) -> None:
        """Take the progress line away."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def number(value: float | None) -> str:
    """A number in a few characters: 0.6921, 12, 1.000e-04, nan; `-` where it is not known yet."""
    if value is None:
        return "-"
    if isinstance(value, int):
        return str(value)
    is_handy = value == 0 or 1e-3 <= abs(value) < 1e6
    return f"{value:.4f}" if is_handy else f"{value:.3e}"


def _head(now: Progress) -> str:
    width = len(str(now.epochs))
    steps = f"{now.batch}" if now.batches is None else f"{now.batch:>{len(str(now.batches))}}/{now.batches}"
    return f"epoch {now.epoch + 1:>{width}}/{now.epochs}  {steps} steps"


def _left(now: Progress) -> list[str]:
    if now.seconds_left is None:
        return []
    minutes, seconds = divmod(round(now.seconds_left), 60)
    hours, minutes = divmod(minutes, 60)
    return [f"{hours}:{minutes:02}:{seconds:02} left" if hours else f"{minutes}:{seconds:02} left"]
