"""What a rank that `rankwise doctor` started runs: `-m rankwise.doctor.ranks.rank FILE`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from rankwise import environment
from rankwise.doctor.finding import Finding
from rankwise.doctor.nominal import Nominal
from rankwise.doctor.ranks.conclusion import examination
from rankwise.doctor.ranks.report import Report
from rankwise.doctor.ranks.taking import take_part
from rankwise.world import World


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """What the ranks of one machine are told: what was found of the machine, and what its link should give."""

    accelerator: str
    limit_seconds: float
    findings: tuple[Finding, ...]
    own_words: tuple[str, ...]
    link: Nominal | None

    def write(self, file: Path) -> None:
        file.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, file: Path) -> Assignment:
        values = json.loads(file.read_text(encoding="utf-8"))
        values["findings"] = tuple(Finding(**{**each, "private": tuple(each["private"])})
                                   for each in values["findings"])
        values["own_words"] = tuple(values["own_words"])
        values["link"] = values["link"] and Nominal(**values["link"])
        return cls(**values)


def step_file(folder: Path, rank: int) -> Path:
    """Where a rank says which step it is in, for the process that started it."""
    return folder / f"step-{rank}"


def reports_file(folder: Path) -> Path:
    """Where rank 0 leaves the reports of all ranks."""
    return folder / "reports.json"


def code_file(folder: Path) -> Path:
    """Where one rank of each machine leaves the exit code of all."""
    return folder / "exit-code"


def main(file: Path) -> None:
    """Take part, and leave what the process that started this one wants to know."""
    world, assignment, folder = environment.world() or World(), Assignment.read(file), file.parent

    def conclude(reports: list[Report]) -> int:
        reports_file(folder).write_text(json.dumps([asdict(report) for report in reports]), encoding="utf-8")
        return examination(reports, assignment.findings, assignment.own_words, assignment.link).exit_code

    def tell(step: str) -> None:
        step_file(folder, world.rank).write_text(step, encoding="utf-8")

    def ended(code: int) -> int:
        if world.local_rank == 0:
            code_file(folder).write_text(str(code), encoding="utf-8")
        return 0

    take_part(world, conclude, ended, tell, accelerator=assignment.accelerator,
              limit_seconds=assignment.limit_seconds, findings=assignment.findings, own_words=assignment.own_words)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
