"""What torch's elastic agent asks for about its ranks' output: only where each one leaves word of a failure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs

from rankwise.launcher.preemption import PREEMPTED


class ErrorFiles(LogsSpecs):
    """One error file a rank in a private folder; the ranks themselves see to their output.

    `surroundings` gives variables for the ranks; it is called when the machines have met, in each attempt.
    """

    def __init__(self, folder: Path, surroundings: Callable[[], Mapping[str, str]]) -> None:
        super().__init__(log_dir=str(folder))
        self._folder, self._surroundings = folder, surroundings
        self._attempts = 0

    @property
    def root_log_dir(self) -> str:
        return str(self._folder)

    def has_word_of(self, local_rank: int) -> bool:
        """Whether this rank has said in this attempt that it failed."""
        return self._file(local_rank).exists()

    def has_preempted(self) -> bool:
        """Whether a rank has ended in this attempt because it was asked to."""
        return any(self._folder.glob(f"error-{self._attempts}-*{PREEMPTED}"))

    def _file(self, local_rank: int) -> Path:
        return self._folder / f"error-{self._attempts}-{local_rank}.json"

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        self._attempts += 1
        surroundings = self._surroundings()
        files = {local_rank: str(self._file(local_rank)) for local_rank in envs}
        for local_rank, variables in envs.items():
            variables.update(surroundings, TORCHELASTIC_ERROR_FILE=files[local_rank])
        console = dict.fromkeys(envs, "")
        return LogsDest(stdouts=console, stderrs=console, error_files=files)
