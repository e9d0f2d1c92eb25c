"""An examination as plain values for machines, and as Markdown for a bug report, which has nothing private in it."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from rankwise import __version__
from rankwise.doctor.examination import Examination
from rankwise.doctor.finding import Finding
from rankwise.doctor.privacy import IN_COMMANDS, scrubbed

FORMAT = 1   # goes up when a name of the values changes its meaning or goes away


def as_values(examination: Examination) -> dict[str, Any]:
    """What `--json` prints (docs/doctor.md has the names). It has the names and addresses of the machines in it."""
    return {
        "format": FORMAT, "rankwise": __version__, "verdict": examination.verdict, "exit_code": examination.exit_code,
        "counts": examination.counts(),
        "findings": [{"group": each.group, "check": each.check, "machine": each.machine, "verdict": each.verdict,
                      "evidence": each.evidence, "remedy": each.remedy} for each in examination.findings],
        "measurements": examination.measurements,
    }


def as_markdown(examination: Examination) -> str:
    """A table for each group; host and user names, addresses, homes and values of unknown variables are hidden."""
    lines = [f"**rankwise {__version__} doctor: {examination.verdict}** ({examination.sentence()})"]
    for group, findings in groupby(examination.findings, key=lambda each: each.group):
        lines += ["", f"### {group}", "", "| verdict | check | evidence | remedy |", "| --- | --- | --- | --- |"]
        lines += [_row(each, examination.own_words) for each in findings]
    return "\n".join(lines)


def _row(finding: Finding, own_words: tuple[str, ...]) -> str:
    where = "" if finding.machine is None else f"machine {finding.machine}: "
    words = (*own_words, *finding.private)
    cells = (finding.verdict, f"{where}{finding.check}", scrubbed(finding.evidence, words),
             scrubbed(finding.remedy, words, IN_COMMANDS))
    return f"| {' | '.join(map(_cell, cells))} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
