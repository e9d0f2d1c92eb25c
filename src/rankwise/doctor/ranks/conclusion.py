"""The whole examination, from this machine's findings and the reports of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rankwise.doctor.examination import Examination
from rankwise.doctor.finding import FAULT, WARNING, Finding
from rankwise.doctor.nominal import Nominal
from rankwise.doctor.ranks.findings import findings_of, measurements
from rankwise.doctor.ranks.report import Report


def examination(reports: Sequence[Report], findings: Sequence[Finding], own_words: Sequence[str],
                link: Nominal | None, launcher_words: str = "") -> Examination:
    """`findings` and `own_words` are of this machine, machine 0; of the others, what is not well is shown."""
    words = {word for report in reports for word in report.own_words} | set(own_words)
    speakers = {report.machine: report for report in reversed(reports) if report.machine_findings}
    elsewhere = [replace(found, machine=machine) for machine, report in sorted(speakers.items()) if machine
                 for found in (Finding(**{**each, "private": tuple(each["private"])})
                               for each in report.machine_findings) if found.verdict in (FAULT, WARNING)]
    return Examination(findings=[*findings, *findings_of(reports, link, launcher_words), *elsewhere],
                       own_words=tuple(sorted(words)), measurements=measurements(reports, link))
