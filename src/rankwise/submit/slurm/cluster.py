"""A Slurm cluster, told and asked by Slurm's own commands; every question has a time limit."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass

from rankwise.errors import RankwiseError, UsageError
from rankwise.submit.asking import asked

_ANSWER_SECONDS = 30.0
_COMMANDS = ("sbatch", "sinfo", "scontrol", "scancel")
_GPUS = re.compile(r"(?:^|,)gpu(?::[^:,()]+)?:(\d+)")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One machine, as a member of one partition; `host` is what the machine itself is called."""

    name: str
    host: str
    partition: str
    is_in_default: bool
    cores: int
    gpus: int


@dataclass(frozen=True, kw_only=True)
class State:
    """A job at one moment, or one element of an array (`element`; None where several wait together, or it is none).

    `reason` is why it waits. `exit_code` is None until it has ended.
    """

    element: int | None
    word: str
    reason: str
    restarts: int
    exit_code: int | None

    @property
    def has_ended(self) -> bool:
        return self.exit_code is not None


def reached() -> None:
    """Raise UsageError where Slurm's commands are not here."""
    missing = [command for command in _COMMANDS if shutil.which(command) is None]
    if missing:
        raise UsageError(f"There is no command `{missing[0]}` here.", "The job is handed to Slurm with it.",
                         "Log in to a machine of the cluster that has Slurm's commands; --dry-run needs none of them.")


def machines() -> list[Machine]:
    """Every machine in every partition. Raises UsageError where the cluster does not answer."""
    return machines_of(_answer("sinfo", "--noheader", "--Node", "--format=%P|%N|%c|%G", "--all"),
                       hosts_of(_answer("scontrol", "--oneliner", "show", "nodes")))


def machines_of(listing: str, hosts: dict[str, str]) -> list[Machine]:
    """The machines of sinfo's lines `PARTITION|NAME|CORES|DEVICES`, where `*` marks the default partition."""
    found = []
    for line in listing.splitlines():
        partition, name, cores, devices = line.split("|")
        found.append(Machine(name=name, host=hosts.get(name, name), partition=partition.rstrip("*"),
                             is_in_default=partition.endswith("*"), cores=int(cores),
                             gpus=sum(map(int, _GPUS.findall(devices)))))
    return found


def hosts_of(listing: str) -> dict[str, str]:
    """What each machine calls itself, by its name in Slurm, from `scontrol show nodes`."""
    return dict(re.findall(r"^NodeName=(\S+) .*?\bNodeHostName=(\S+)", listing, re.MULTILINE))


def submit(script: str) -> str:
    """Hand over the script; returns the job's number. Raises UsageError where Slurm refuses it."""
    answer = _asked("sbatch", "--parsable", given=script)
    if answer.returncode:
        raise UsageError("Slurm refused the job.", f"sbatch says: {'; '.join(_words(answer.stderr))}",
                         "Change what it names; --dry-run shows the script.")
    return answer.stdout.strip().split(";")[0]   # behind it stands the cluster, where there are several


def states(job_id: str) -> list[State] | None:
    """The job, or the elements of its array, that Slurm knows of; None where it does not answer just now.

    Raises RankwiseError where Slurm knows of no such job any more.
    """
    answer = _asked("scontrol", "--oneliner", "show", "job", job_id)
    if answer.returncode and "Invalid job id" in answer.stderr:
        raise RankwiseError(f"Slurm does not know job {job_id} any more.", "How it ended is not known here.",
                            f"See the end of its output, slurm-{job_id}.out, and `sacct --jobs={job_id}`.")
    return None if answer.returncode else states_of(answer.stdout)


def states_of(listing: str) -> list[State]:
    """The states in the lines of `scontrol --oneliner show job`."""
    return [_state(line) for line in listing.splitlines() if line.startswith("JobId=")]


def cancel(job_id: str) -> None:
    """End the job. Raises RankwiseError where Slurm does not do it."""
    answer = _asked("scancel", job_id)
    if answer.returncode:
        raise RankwiseError(f"Job {job_id} may still run.", f"scancel says: {'; '.join(_words(answer.stderr))}",
                            f"To end it: scancel {job_id}")


_WAITS_OR_RUNS = {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "RESIZING", "REQUEUED",
                  "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "SIGNALING", "STAGE_OUT"}


def _state(line: str) -> State:
    def value(name: str) -> str:
        found = re.search(rf"(?:^| ){name}=(\S*)", line)
        return found[1] if found else ""

    word, element = value("JobState"), value("ArrayTaskId")
    code, _, signal = value("ExitCode").partition(":")
    failed = int(code or 0) or int(word != "COMPLETED" or int(signal or 0) > 0)
    return State(element=int(element) if element.isdecimal() else None, word=word, reason=value("Reason"),
                 restarts=int(value("Restarts") or 0), exit_code=None if word in _WAITS_OR_RUNS else failed)


def _answer(*command: str) -> str:
    answer = _asked(*command)
    if answer.returncode:
        said = _words(answer.stderr)
        lacks_configuration = "configuration" in said[-1]
        raise UsageError(
            "Slurm does not answer." if not lacks_configuration else "Slurm does not know its cluster here.",
            f"{command[0]} says: {said[-1]}{f' ({said[0]})' if said[1:] else ''}",   # what came of it, and of what
            "Log in to a machine of the cluster, or let SLURM_CONF name its slurm.conf." if lacks_configuration else
            "`scontrol ping` shows whether its controller is up; --dry-run needs none.")
    return answer.stdout


def _asked(*command: str, given: str = "") -> subprocess.CompletedProcess[str]:
    return asked(command, limit_seconds=_ANSWER_SECONDS, given=given)


def _words(errors: str) -> list[str]:
    """The lines that a command of Slurm said, without its name before each."""
    lines = [re.sub(r"^\w+: ((error|fatal): )?", "", line.strip()) for line in errors.splitlines() if line.strip()]
    return lines or ["nothing"]
