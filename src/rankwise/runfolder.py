"""The folder of a run: choosing it, and finding the run that `--resume` names.

    runs/NAME/
    ├── settings.json                 the target and the settings of the latest start
    ├── metrics.jsonl, tensorboard/   what was logged
    ├── logs/rank0.log, ...           what each rank printed
    ├── stalls/report.txt, ...        where the ranks stood when they stalled, or when one was lost
    ├── status/rank0.json, ...        what each rank does: written anew each second
    └── checkpoints/step-000392/      what a resumed run continues from
"""

from __future__ import annotations

import contextlib
import difflib
import json
import re
import shutil
import time
from dataclasses import asdict
from pathlib import Path

from rankwise.errors import UsageError
from rankwise.settings import Settings

SETTINGS = "settings.json"
CHECKPOINTS = "checkpoints"
LOGS = "logs"
STALLS = "stalls"
STATUS = "status"
LATEST = "latest"
AUTO = "auto"
_LONGEST_NAME_BYTES = 255   # of file systems in use


def choose(settings: Settings, target: str) -> Path:
    """Make and claim the run's folder; `target` (`train.py`, `cifar10`, ...) is what the run is named after.

    A resumed run continues in its own folder, unless it gets a new name or starts from one single checkpoint; with
    `--resume auto` the run of this name is begun or continued. To be called once a run, before its ranks start: the
    folder of an earlier run is never taken over.
    Raises UsageError where the name is taken or cannot be a name, or the folder cannot be written.
    """
    try:
        folder = _continued(settings) or named(settings) or _fresh(settings, target)
        folder.mkdir(parents=True, exist_ok=True)
        _write_settings(folder, settings, target)
    except OSError as error:
        raise UsageError(f"The run's folder in {settings.runs} cannot be written.",
                         f"{error.strerror}: {error.filename}.", "Give --runs a folder that can be written.") from error
    return folder


def resume_from(settings: Settings) -> Path | None:
    """The run (or single checkpoint) that `--resume` names; None without it, and with `auto`.

    A run whose own folder holds checkpoints goes on from them, whatever this is: that is all that `auto` needs.
    Raises UsageError where there is none of that name.
    """
    if settings.resume is None:
        return None
    if settings.resume == AUTO:
        if settings.name is None:
            raise UsageError("--resume is auto and --name is not given.",
                             "It is the run of this name that is continued.", "Give --name NAME, the same each time.")
        return None
    runs = Path(settings.runs)
    if settings.resume == LATEST:
        return _latest(runs)
    for folder in (runs / settings.resume, Path(settings.resume)):
        if folder.is_dir():
            return folder
    names = [folder.name for folder in _resumable(runs)]
    close = difflib.get_close_matches(settings.resume, names, n=1)
    raise UsageError(f"--resume is {settings.resume}.", f"{runs} has no run of that name, and it is no folder.",
                     f"Did you mean --resume {close[0]}?" if close else _choice(runs, names))


def named(settings: Settings) -> Path | None:
    """The folder that --name asks for; None without it.

    Raises UsageError where the name is taken by an earlier run, unless that is to be continued, or cannot be a name.
    """
    if settings.name is None:
        return None
    if settings.name in (LATEST, AUTO) or not re.fullmatch(r"[^\W_][\w.+-]*", settings.name):
        raise UsageError(f"--name is {settings.name!r}.",
                         "A run's name is a folder: letters, digits and . _ + -, from a letter or digit on; "
                         f"`{LATEST}` and `{AUTO}` have a meaning of their own.",
                         "Give --name another name, or leave it out.")
    if len(settings.name.encode()) > _LONGEST_NAME_BYTES:
        raise UsageError(f"--name has {len(settings.name.encode())} bytes.",
                         f"A run's name is a folder, and that of a folder has at most {_LONGEST_NAME_BYTES}.",
                         "Give --name a shorter name.")
    folder = Path(settings.runs) / settings.name
    if is_run(folder) and settings.resume != AUTO:
        raise UsageError(f"--name is {settings.name}.", f"{folder} holds an earlier run.",
                         f"Add --resume {AUTO} to continue it, choose another name, or remove the folder.")
    return folder


def find(run: str, runs: Path) -> Path:
    """The folder of the run that is meant: its name in `runs`, its folder, or `latest`, with checkpoints or without.

    Raises UsageError where there is none.
    """
    known = sorted((path.parent for path in runs.glob(f"*/{SETTINGS}")), key=_begun)
    if run == LATEST and known:
        return known[-1]
    for folder in (runs / run, Path(run)):
        if folder.is_dir() and run:
            return folder
    names = [folder.name for folder in known]
    if not names:
        raise UsageError(f"There is no run `{run}`.", f"{runs} has no runs yet, and {run} is no folder.",
                         "Start one first, or give --runs the folder in which it is kept.")
    close = difflib.get_close_matches(run, names, n=1)
    raise UsageError(f"There is no run `{run}`.", f"{runs} has no run of that name, and it is no folder.",
                     f"Did you mean {close[0]}?" if close else
                     f"Runs are: {', '.join(names[-8:])}.")


def _begun(folder: Path) -> float:
    """When a run was last started, in seconds since 1970."""
    return (folder / SETTINGS).stat().st_mtime


def discard_unused(folder: Path) -> None:
    """Remove the folder of a run that could not be used as given and never began; one that holds more is kept."""
    with contextlib.suppress(OSError):
        if {each.name for each in folder.iterdir()} <= {SETTINGS, LOGS, STALLS, STATUS}:
            shutil.rmtree(folder)
            folder.parent.rmdir()   # with its last run


def target_of(folder: Path) -> str | None:
    """What the run in this folder trains, as it was named at its start."""
    try:
        target = json.loads((folder / SETTINGS).read_text("utf-8"))["target"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return target if isinstance(target, str) else None


def is_run(folder: Path) -> bool:
    """Whether this is the folder of a run, rather than one of its checkpoints."""
    return (folder / SETTINGS).is_file() or (folder / CHECKPOINTS).is_dir()


def newest_step(folder: Path) -> int | None:
    """The step of a run's newest checkpoint, sound or not; None where it has none."""
    names = [re.fullmatch(r"step-(\d+)", path.name) for path in folder.glob(f"{CHECKPOINTS}/step-*")]
    return max((int(name[1]) for name in names if name), default=None)


def _continued(settings: Settings) -> Path | None:
    source = resume_from(settings)
    return source if source is not None and settings.name is None and is_run(source) else None


def _fresh(settings: Settings, target: str) -> Path:
    """A folder that this call made, named after the target and the time."""
    stem = re.sub(r"[^\w.+-]+", "-", Path(target).stem).strip("-._") or "run"
    name = f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    runs = Path(settings.runs)
    runs.mkdir(parents=True, exist_ok=True)
    for number in range(1, 1000):
        folder = runs / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return folder
    raise UsageError(f"{runs} has a thousand runs called {name}.", "Each run has its own folder.", "Give --name.")


def _write_settings(folder: Path, settings: Settings, target: str) -> None:
    text = json.dumps({"target": target, "settings": asdict(settings)}, indent=2)
    temporary = folder / f".{SETTINGS}.part"
    temporary.write_text(text + "\n", "utf-8")
    temporary.replace(folder / SETTINGS)


def _latest(runs: Path) -> Path:
    resumable = _resumable(runs)
    if not resumable:
        raise UsageError(f"--resume is {LATEST}.", f"No run in {runs} has a checkpoint.", _choice(runs, []))
    return max(resumable, key=lambda run: (run / CHECKPOINTS).stat().st_mtime)   # a save renames a folder into it


def _resumable(runs: Path) -> list[Path]:
    return sorted({step.parent.parent for step in runs.glob(f"*/{CHECKPOINTS}/step-*")})


def _choice(runs: Path, names: list[str]) -> str:
    if names:
        return f"Runs with a checkpoint are: {', '.join(names[-8:])}."
    return "See that --runs is the folder in which the run was kept, and that its training function calls run.save()."
