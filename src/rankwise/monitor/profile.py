"""The detailed look: some steps recorded by torch's profiler, in a trace that Perfetto and chrome://tracing open."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

FOLDER = "profile"


class Profile:
    """Records steps `first` to `last` of a rank; the trace is written when the last of them is done."""

    def __init__(self, folder: Path, rank: int, *, first: int, last: int, device: torch.device) -> None:
        self.file = folder / FOLDER / f"rank{rank}.json.gz"
        self._first, self._last, self._device = first, last, device
        self._profiler: Any = None

    def after_step(self, step: int) -> bool:
        """Begin or end at this step; True where a trace was written now."""
        if step == self._first - 1:
            self._begin()
        if step != self._last or self._profiler is None:
            return False
        self._end()
        return True

    def _begin(self) -> None:
        from torch.profiler import ProfilerActivity, profile
        kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._device.type == "cuda" else [])]
        self._profiler = profile(activities=kinds)
        self._profiler.start()

    def _end(self) -> None:
        self._profiler.stop()
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self._profiler.export_chrome_trace(str(self.file))
        self._profiler = None

    def close(self) -> None:
        """A training that ended before the last step keeps what was recorded."""
        if self._profiler is not None:
            self._end()
