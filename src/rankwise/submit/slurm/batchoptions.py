"""Further options of sbatch: those that a job has from rankwise itself are refused; how a script's line writes one."""

from __future__ import annotations

import re

from rankwise.errors import UsageError

_PLAIN = re.compile(r"[\w=./:,@%+-]+")
_INSTEAD = {   # what to do, and sbatch's names of the options that it is instead of
    "Give --name instead.": "job-name J",
    "Give --partition instead.": "partition p",
    "Give --account instead.": "account A",
    "Give --time instead.": "time t",
    "Give --memory instead.": "mem",
    "Give --nodes instead.": "nodes N",
    "Give --devices instead.": "gpus G gpus-per-node gpus-per-task gpus-per-socket gres=gpu ntasks n ntasks-per-node "
                               "ntasks-per-gpu",
    "Give --cores-per-device instead.": "cpus-per-task c cpus-per-gpu",
    "Give --verify instead.": "array a",
    "Give --grace-seconds instead.": "signal",
    "Give TARGET instead.": "wrap",
    "Leave it out: the output is followed in the current folder.": "output o error e open-mode chdir D",
    "Leave it out: a training that can go on is queued again, and no other.": "requeue no-requeue",
}


def require_further(option: str) -> None:
    """Raise UsageError for a text that is no option of sbatch, or one that rankwise gives itself.

    A long name may be shortened, as sbatch takes it.
    """
    if not re.fullmatch(r"--[a-z][a-z-]*(=[^\n\r\0]*)?|-[A-Za-z]\S*", option):
        raise UsageError(f"--sbatch is {option!r}.", "It is an option of sbatch, in one word.",
                         "Give --sbatch=--qos=long, for example.")
    for remedy, names in _INSTEAD.items():
        if any(_is(option, name) for name in names.split()):
            raise UsageError(f"--sbatch is {option!r}.", "rankwise gives this option to sbatch itself.", remedy)


def _is(option: str, name: str) -> bool:
    if not option.startswith("--"):
        return option[1] == name
    if "=" in name:
        return option.startswith(f"--{name}")
    return len(name) > 1 and name.startswith(option[2:].partition("=")[0])


def quoted(option: str) -> str:
    """The option as one word of a line `#SBATCH`, where spaces part words and `#` begins a comment."""
    if _PLAIN.fullmatch(option):
        return option
    return '"' + re.sub(r'(["\\])', r"\\\1", option) + '"'
