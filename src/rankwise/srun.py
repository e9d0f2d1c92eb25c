"""What Slurm's `srun` says to each task that it starts: which one it is, and where the tasks can meet.

The names are those of srun's manual, section "Output environment variables". A batch script and a shell on an allocated
machine find some of them too; only a task of a step has a number of a step that it shares with others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_FIRST_PORT, _PORTS = 20_000, 12_000   # below the ports that systems give to whoever asks for any
_FIRST_OF_SLURMS_OWN_STEPS = 0xFFFFFFF0   # the batch script, an interactive shell and the like


@dataclass(frozen=True, kw_only=True)
class Step:
    """One task of a step of several: its number among all and on its machine, the machine's number, and machine 0.

    `host` is the name of machine 0, or loopback where there is no other. `port` follows from job and step, so that
    every task knows it and two steps on one machine differ; nobody has asked whether it is free. `has_own_devices` says
    that the task sees no device of another.
    """

    task: int
    tasks: int
    local_task: int
    local_tasks: int
    node: int
    nodes: int
    host: str
    port: int
    has_own_devices: bool

    @classmethod
    def detect(cls, environ: Mapping[str, str]) -> Step | None:
        """The step that this process is a task of; None outside of one, and for a step of one task."""
        try:
            number, tasks = int(environ["SLURM_STEP_ID"]), int(environ["SLURM_STEP_NUM_TASKS"])
            if number >= _FIRST_OF_SLURMS_OWN_STEPS or tasks == 1:
                return None
            node = int(environ["SLURM_NODEID"])
            local_tasks = tasks_of_each_node(environ["SLURM_STEP_TASKS_PER_NODE"])[node]
            nodes = int(environ["SLURM_STEP_NUM_NODES"])
            return cls(task=int(environ["SLURM_PROCID"]), tasks=tasks, local_task=int(environ["SLURM_LOCALID"]),
                       local_tasks=local_tasks, node=node, nodes=nodes,
                       host=first_host(environ["SLURM_STEP_NODELIST"]) if nodes > 1 else "127.0.0.1",
                       port=_FIRST_PORT + (int(environ["SLURM_JOB_ID"]) + 101 * number) % _PORTS,
                       has_own_devices=_has_own_devices(environ, local_tasks))
        except (KeyError, ValueError, IndexError):   # a process that was given only some of them
            return None

    @property
    def is_a_task_a_node(self) -> bool:
        return self.tasks == self.nodes

    def as_torchrun(self) -> dict[str, str]:
        """The variables that torchrun would set for this task as a rank."""
        local_rank, local_size = (0, 1) if self.has_own_devices else (self.local_task, self.local_tasks)
        return {"RANK": str(self.task), "WORLD_SIZE": str(self.tasks), "LOCAL_RANK": str(local_rank),
                "LOCAL_WORLD_SIZE": str(local_size), "GROUP_RANK": str(self.node), "MASTER_ADDR": self.host,
                "MASTER_PORT": str(self.port)}


def first_host(node_list: str) -> str:
    """The first name of a list of machines as Slurm writes it: n1 of n[1-3,7], login of login,gpu[01-10]."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", node_list)
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", first[0] if first else "")


def tasks_of_each_node(text: str) -> list[int]:
    """How many tasks each machine has: [2, 2, 2, 1] of 2(x3),1. Raises ValueError for anything else."""
    counts: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if found is None:
            raise ValueError(text)
        counts += [int(found[1])] * int(found[2] or 1)
    return counts


def _has_own_devices(environ: Mapping[str, str], local_tasks: int) -> bool:
    """Whether each task was given one GPU (--gpus-per-task=1), rather than all tasks one, or each task all."""
    seen = [gpu for gpu in environ.get("SLURM_STEP_GPUS", "").split(",") if gpu]
    return len(seen) == 1 and int(environ.get("SLURM_GPUS_ON_NODE") or 0) >= local_tasks > 1
