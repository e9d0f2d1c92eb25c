"""What a Slurm job asks of its cluster, as plain values, and which values it cannot have."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from rankwise.errors import UsageError
from rankwise.submit.slurm.batchoptions import require_further

WORLD = "$SLURM_ARRAY_TASK_ID"   # among the words of a command: the world that an element of an array verifies
_LAST_WORD_SECONDS = 30.0        # beyond --grace-seconds: what a rank may still write when it has been asked to end


@dataclass(frozen=True, kw_only=True)
class SlurmJob:
    """`nodes` machines of `devices` devices each, on which `command` runs once a machine.

    With `worlds` the job is an array of jobs, one for each number of devices that is verified. `goes_on` says that a
    job that was asked to end is to be queued again. `time` and `memory` (of a machine) are written as Slurm reads them,
    None where the partition decides; `options` are further ones of sbatch, as they are.
    """

    name: str
    nodes: int
    devices: int
    command: tuple[str, ...]
    uses_gpus: bool
    cores_per_device: int = 1
    partition: str | None = None
    account: str | None = None
    time: str | None = None
    memory: str | None = None
    options: tuple[str, ...] = ()
    worlds: tuple[int, ...] = ()
    goes_on: bool = False
    grace_seconds: float = 30.0

    def __post_init__(self) -> None:
        for option, value, form, meaning, example in (
                ("--time", self.time, r"\d+(-\d+(:\d+(:\d+)?)?|(:\d+){0,2})",
                 "It is a time as Slurm reads it: minutes, HOURS:MINUTES:SECONDS or DAYS-HOURS.", "12:00:00"),
                ("--memory", self.memory, r"\d+[KMGT]?", "It is a number with K, M, G or T, of each machine.", "64G"),
                ("--partition", self.partition, r"[\w.@+-]+", "It is the name of a partition in Slurm.", "gpu"),
                ("--account", self.account, r"[\w.@+-]+", "It is the name of an account in Slurm.", "physics")):
            if value is not None and not re.fullmatch(form, value):
                raise UsageError(f"{option} is {value!r}.", meaning, f"Give {option} {example}, for example.")
        for text in self.options:
            require_further(text)

    @property
    def cores(self) -> int:
        """Cores of one machine."""
        return self.devices * self.cores_per_device

    @property
    def notice_seconds(self) -> int:
        """How long before its end the job is asked to save; Slurm may do so up to a minute earlier."""
        return math.ceil(self.grace_seconds + _LAST_WORD_SECONDS)

    def output_of(self, job_id: str, element: int | None = None) -> str:
        """The name of the file that this job, or an element of its array, writes into."""
        return f"slurm-{job_id}.out" if element is None else f"slurm-{job_id}_{element}.out"
