"""The process's environment: the one file that reads `os.environ` and the one that writes to it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from rankwise.settings import Settings
from rankwise.srun import Step
from rankwise.world import World

SETTINGS = "RANKWISE_SETTINGS"     # settings of a rank, as JSON, from the launcher
RUN_FOLDER = "RANKWISE_RUN_FOLDER" # the run's folder, chosen by the launcher
JOB = "RANKWISE_JOB"               # file that says what a rank runs
ATTEMPT = "RANKWISE_ATTEMPT"       # how often the launchers of the run have started its ranks before
WITNESS = "RANKWISE_WITNESS"       # file that says what to watch of a training that is verified
TRIAL = "RANKWISE_TRIAL"           # file that says for how many steps a trial measures
DATA = "RANKWISE_DATA"             # folder in which data sets are kept
SERVED = {"TORCHELASTIC_USE_AGENT_STORE": "True"}   # torch's word for a store that is there: rank 0 is to keep none


def world() -> World | None:
    """Where a launcher put this process, or srun as a task of several; None where none did."""
    return World.detect({**os.environ, **meeting_place()})


def step() -> Step | None:
    """The step of srun that this process is a task of, where it has several."""
    return Step.detect(os.environ)


def meeting_place() -> dict[str, str]:
    """What ranks find in torchrun's variables, for a task that srun has started as a rank; nothing for any other.

    A place to meet that the user has set is left alone.
    """
    task = None if "RANK" in os.environ else step()
    if task is None:
        return {}
    return {**task.as_torchrun(), **{name: os.environ[name] for name in ("MASTER_ADDR", "MASTER_PORT")
                                     if os.environ.get(name)}}


def settings() -> Settings | None:
    """The settings that a launcher handed to this process."""
    text = os.environ.get(SETTINGS)
    return Settings.from_json(text) if text else None


def run_folder() -> Path | None:
    """The run's folder, where a launcher chose one."""
    text = os.environ.get(RUN_FOLDER)
    return Path(text) if text else None


def job() -> Path | None:
    """The file that says what this process runs, where rankwise started it as a rank."""
    text = os.environ.get(JOB)
    return Path(text) if text else None


def witness() -> Path | None:
    """The file that says what to watch in this process, where `rankwise verify` started it."""
    text = os.environ.get(WITNESS)
    return Path(text) if text else None


def trial() -> Path | None:
    """The file that says what to measure in this process, where a trial is made of it."""
    text = os.environ.get(TRIAL)
    return Path(text) if text else None


def store_address() -> tuple[str, int] | None:
    """Host and port of the store that the ranks of this job meet in; None where there is none."""
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT", "")
    return (host, int(port)) if host and port.isdecimal() and int(port) > 0 else None


def store_is_served() -> bool:
    """Whether a launcher keeps that store; where none does, rank 0 has to."""
    return all(os.environ.get(name) == value for name, value in SERVED.items())


def machine() -> int | None:
    """The number of this process's machine, as its launcher counts them; None where it does not say."""
    text = os.environ.get("GROUP_RANK", "")
    return int(text) if text.isdecimal() else None


def attempt() -> int:
    """How often the ranks of this run were started before.

    Our launcher's count is the same on all machines; torchrun's is that of this machine's restarts.
    """
    text = os.environ.get(ATTEMPT) or os.environ.get("TORCHELASTIC_RESTART_COUNT", "")
    return int(text) if text.isdecimal() else 0


def is_elastic() -> bool:
    """Whether torch's elastic agent, which may start ranks again, has started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def error_file() -> Path | None:
    """Where torch's elastic agent looks for the reason of a failure."""
    text = os.environ.get("TORCHELASTIC_ERROR_FILE")
    return Path(text) if text else None


def data_folder() -> Path:
    """Where downloaded data sets are kept: $RANKWISE_DATA, or the user's cache."""
    text = os.environ.get(DATA)
    if text:
        return Path(text)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rankwise"


def threads() -> int | None:
    """How many threads a process computes with on a CPU, where the user has set it."""
    text = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    return int(text) if text.isdecimal() and int(text) > 0 else None


def of_families(prefixes: tuple[str, ...]) -> dict[str, str]:
    """The variables whose names begin so, with their values: a view of nothing else."""
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith(prefixes)}


def those_set(names: tuple[str, ...]) -> tuple[str, ...]:
    """Which of these variables are set to something; what they hold may be a secret, and stays here."""
    return tuple(name for name in names if os.environ.get(name))


def no_proxy() -> str:
    """The hosts that are reached without a proxy, with commas between."""
    return os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""


def lacks(name: str) -> bool:
    """Whether a variable is not set, so that a default of ours may stand in."""
    return name not in os.environ


@contextlib.contextmanager
def changed(changes: Mapping[str, str]) -> Iterator[None]:
    """Within this block this process has some variables changed."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
