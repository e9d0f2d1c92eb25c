"""The checkpoints of a run over its ranks: rank 0 writes, every rank reads, and all learn of what concerns them."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from rankwise.checkpoint import folder as folders
from rankwise.checkpoint import state
from rankwise.checkpoint.initial import load_initial
from rankwise.checkpoint.retention import Retention
from rankwise.checkpoint.snapshot import Staging
from rankwise.checkpoint.writer import Writer
from rankwise.errors import CheckpointError, RankwiseError
from rankwise.group import Group

T = TypeVar("T")


class Checkpoints:
    """The checkpoints in one folder. Every rank calls every method at the same place, unless its text says otherwise.

    Saving is a snapshot, for which the training waits, and the writing of it, for which it does not. What goes wrong
    with the state is raised; what goes wrong with the disk is kept for `news`, and the training goes on.
    """

    def __init__(self, folder: Path, group: Group, *, retention: Retention | None = None,
                 limit_seconds: float = 600.0) -> None:
        """`limit_seconds` bounds each wait for the disk."""
        self._folder, self._group, self._limit_seconds = folder, group, limit_seconds
        self._retention = retention or Retention()
        self._staging, self._writer = Staging(), Writer()
        self._begun: Path | None = None   # rank 0: what the writer has in hand
        self.newest: Path | None = None
        """The newest checkpoint of this run that is whole, as far as rank 0 knows."""
        self._has_told_of_slow_disk = False
        self.failures = 0
        """Checkpoints that could not be written, as far as rank 0 knows."""

    @property
    def run_name(self) -> str:
        """The name of the run that these are of."""
        return self._folder.parent.name

    def save(self, step: int, prepared: dict[str, Any], position: dict[str, Any],
             metrics: dict[str, float | None] | None = None) -> tuple[Path, list[str]]:
        """Take a snapshot and begin to write it; returns the checkpoint's folder to be, and lines for the user.

        There is room for one snapshot: where the one before is still being written, all ranks wait for it.
        `position` and `metrics` are made of plain JSON values. Raises CheckpointError on every rank where the state
        could not be read again without risk, or there is no memory for it.
        """
        target = folders.step_folder(self._folder, step)
        lines: list[str] = []
        if self._group.agree(self._writer.is_busy):
            lines = self._on_slow_disk()
            if not self._on_main("run.save()", lambda: self._writer.wait(self._limit_seconds)):
                self.failures += 1
                return target, [f"{target.name} is left out: the checkpoint before was not written within "
                                f"{self._limit_seconds:g} s"]
        lines += self.news()
        problem: CheckpointError | None = None
        if self._group.is_main:
            try:
                self._begin(target, prepared, {"position": position, "metrics": metrics or {}})
            except CheckpointError as error:
                problem = error
        if self._group.agree(problem is not None):   # a small reduction; objects travel only when there is one
            problem = self._group.broadcast_object(problem)
        if problem is not None:
            raise problem
        return target, lines

    def _on_slow_disk(self) -> list[str]:
        if self._has_told_of_slow_disk:
            return []
        self._has_told_of_slow_disk = True
        return ["saving waits for the disk: the checkpoint before is still being written. Save less often, or on a "
                "faster disk (this is said once)."]

    def _begin(self, target: Path, prepared: dict[str, Any], content: dict[str, Any]) -> None:
        content = copy.deepcopy({**content, "classes": state.classes_of(prepared)})
        states = self._staging.take(state.state_of(prepared))
        write = partial(state.write, target, states, state.modules_of(prepared), content)

        def write_and_tidy() -> None:
            write()
            with contextlib.suppress(OSError):   # what cannot be removed stays
                self._retention.apply(target)

        self._begun = target
        self._writer.begin(write_and_tidy)

    def news(self) -> list[str]:
        """Lines for the user on the checkpoint that was begun, once it has ended; on rank 0. Any rank may call it."""
        if self._begun is None or self._writer.is_busy:
            return []
        ended, self._begun = self._begun, None
        failure = self._writer.failure
        if failure is None:
            self.newest = ended
            return []
        self.failures += 1
        return [f"{failure.given} {failure.truth} The training goes on; {self._newest_is()}. {failure.remedy}"]

    def _newest_is(self) -> str:
        return f"the newest whole checkpoint is {self.newest.name}" if self.newest else "no checkpoint is whole yet"

    def require_written(self, target: Path) -> None:
        """Wait until `target` is on the disk. Raises CheckpointError, on every rank, where it is not."""
        def wait() -> None:
            if not self._writer.wait(self._limit_seconds) or target != self._begun:
                raise CheckpointError(f"{target} was to be written.", f"It was not within {self._limit_seconds:g} s.",
                                      "See that its disk answers, or raise --timeout.")
            if self._writer.failure is not None:
                raise self._writer.failure
        self._on_main("run.save()", wait)

    def settles_within(self, limit_seconds: float) -> bool:
        """Whether what was begun has ended by then."""
        return self._writer.wait(limit_seconds)

    def finish(self, limit_seconds: float | None = None) -> list[str]:
        """Let the last checkpoint get to the disk, within the limit; lines for the user. Waits for no other rank."""
        limit_seconds = self._limit_seconds if limit_seconds is None else limit_seconds
        if not self._writer.wait(limit_seconds):
            return [f"{self._begun} was not written within {limit_seconds:g} s; {self._newest_is()}"]
        return self.news()

    def summary(self) -> list[str]:
        """What of the checkpoints a person must know at the end."""
        if not self.failures:
            return []
        return [f"{self.failures} checkpoint{'s' * (self.failures > 1)} could not be written; {self._newest_is()}"]

    def export(self, module: nn.Module, path: Path) -> None:
        """Write the module's plain state dict with torch.save, atomically, from rank 0."""
        self._on_main("run.export()", lambda: state.export_weights(module, path))

    def begin(self, source: Path | None) -> tuple[Path | None, list[CheckpointError]]:
        """Tidy up after a killed run; returns the checkpoint to go on from, and what is wrong with newer ones.

        A run whose own folder holds checkpoints goes on from the newest sound one. Otherwise it begins from `source`, a
        run's folder or a checkpoint's. None: it starts afresh. Raises CheckpointError, on every rank, where `source`
        has no sound one.
        """
        def search() -> tuple[Path | None, list[CheckpointError]]:
            folders.remove_leftovers(self._folder)
            own, damaged = folders.newest_sound(self._folder)
            if own is not None or source is None:
                return own, damaged
            return folders.find(source)
        found = self._on_main("the search for a checkpoint", search)
        if found[0] is not None and found[0].parent == self._folder:
            self.newest = found[0]
        return found

    def load(self, folder: Path, prepared: dict[str, Any]) -> dict[str, Any]:
        """Restore all that was prepared; returns the position. Every rank reads the files for itself.

        Raises CheckpointError, on every rank, where a rank cannot read them or they belong to another training.
        """
        content: dict[str, Any] = {}
        problem: CheckpointError | None = None
        try:
            content = folders.unseal(folder)
            state.restore(folder, content["classes"], prepared)
        except CheckpointError as error:
            problem = error
        answers = self._group.gather_objects((problem, content))
        for rank, (problem, other) in enumerate(answers):
            if problem is not None:
                raise CheckpointError(f"Rank {rank}: {problem.given}", problem.truth, problem.remedy) from problem
            if json.dumps(other) != json.dumps(answers[0][1]):   # a loss of nan does not equal itself
                raise CheckpointError(f"{folder} was to be loaded.", f"Rank {rank} sees other files there than rank 0.",
                                      "Keep the runs on a disk that all machines share, or copy the folder to each.")
        return dict(content["position"])

    def initialise(self, module: nn.Module, source: Path) -> None:
        """Load weights into rank 0's module, from which the others are to take them.

        Raises, on every rank, what `load_initial` does.
        """
        self._on_main("--init", lambda: load_initial(source, module))

    def _on_main(self, place: str, action: Callable[[], T]) -> T:
        """`action()` on rank 0 while the others wait; its result, or its error for the user, on every rank."""
        outcome: Any = None
        with self._group.alone(place) as mine:
            if mine:
                try:
                    outcome = action()
                except RankwiseError as error:
                    outcome = error
        outcome = self._group.broadcast_object(outcome)
        if isinstance(outcome, RankwiseError):
            raise outcome
        return outcome  # type: ignore[no-any-return]
