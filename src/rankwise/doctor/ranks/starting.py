"""Starts the ranks of this machine, waits for their end, and reads what they left."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rankwise.doctor.ranks.rank import Assignment, code_file, reports_file, step_file
from rankwise.doctor.ranks.report import Report
from rankwise.doctor.ranks.transport import words_of
from rankwise.errors import RankwiseError, UsageError
from rankwise.launcher import layout
from rankwise.launcher.job import Job
from rankwise.launcher.quiet import run_quietly
from rankwise.quantities import byte_count
from rankwise.settings import Settings

_RANK_BYTES = 250_000_000   # of a process with torch, and little data
_MOST_ON_A_CPU, _FEWEST_ON_A_CPU = 4, 2


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How it ended: on machine 0 the reports of all ranks (empty where rank 0 was lost), on each the exit code of all.

    `problem` is what the launcher says of a rank, or of a machine, that failed.
    """

    reports: list[Report]
    exit_code: int | None
    problem: str
    step: str   # the last one of the first rank of this machine


def devices_here(settings: Settings, room_bytes: int | None) -> int:
    """All accelerators of this machine; on a CPU as many processes as cores, from two to four.

    `room_bytes` is the memory that is left, where it is known. Raises UsageError for more processes on a CPU than have
    room in it.
    """
    from rankwise.device import count, kind_of_device
    from rankwise.processor import cores
    present = count(kind_of_device(settings.accelerator))
    if settings.devices and not present and room_bytes is not None and settings.devices > room_bytes // _RANK_BYTES:
        raise UsageError(f"--devices is {settings.devices}.", f"Each is a process of about {byte_count(_RANK_BYTES)}, "
                         f"and {byte_count(room_bytes)} of memory are left.",
                         f"Give --devices {max(1, room_bytes // _RANK_BYTES)} at most.")
    return settings.devices or present or min(max(cores(), _FEWEST_ON_A_CPU), _MOST_ON_A_CPU)


def run(settings: Settings, assignment: Assignment, tell: Callable[[str], None]) -> Ended:
    """A rank on each device of this machine, to their end; `tell` is given the step that they are in, now and then.

    Raises KeyboardInterrupt when interrupted, and UsageError for devices that are not here.
    """
    job = Job(module="rankwise.doctor.ranks.rank", has_terminal=False, can_save=False)
    with tempfile.TemporaryDirectory(prefix="rankwise-doctor-") as scratch:
        folder, runs = Path(scratch) / "own", Path(scratch) / "runs"
        for each in (folder, runs / "doctor"):
            each.mkdir(parents=True)
        file = folder / "assignment.json"
        assignment.write(file)
        job.argv.extend(["rankwise doctor", str(file)])
        first = settings.node_rank * (settings.devices or 1)

        def look() -> None:
            tell(_text(step_file(folder, first)) or "starting the ranks")

        ranks = layout.with_devices(settings.having(mode="ddp", runs=str(runs), name="doctor", max_restarts=0,
                                                    stall_timeout=0))
        problem = ""
        try:
            outcome = run_quietly(job, ranks, runs / "doctor", variables={}, meanwhile=look)
            problem = outcome.summary() if outcome.failure is not None else ""
        except RankwiseError as error:
            problem = f"{error.given} {error.truth}"
        except (OSError, RuntimeError) as error:   # the system, or torch's store, refuses
            problem = f"{words_of(error)}."
        return Ended(reports=_reports(folder), exit_code=_code(folder), problem=problem,
                     step=_text(step_file(folder, first)))


def _reports(folder: Path) -> list[Report]:
    text = _text(reports_file(folder))
    return [Report.of(values) for values in json.loads(text)] if text else []


def _code(folder: Path) -> int | None:
    text = _text(code_file(folder))
    return int(text) if text else None


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.exists() else ""
