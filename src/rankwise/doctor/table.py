"""An examination on a terminal: the findings by group, with what to do about those that are not well."""

from __future__ import annotations

from itertools import groupby

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rankwise.doctor.examination import Examination
from rankwise.doctor.finding import FAULT, OK, WARNING, Finding

_STYLES = {OK: "green", WARNING: "yellow", FAULT: "bold red"}
_SHORT = {"not applicable": "n/a"}
_VERDICT_WIDTH, _NARROW, _WIDE = 7, 16, 32   # of the columns; names of variables are long
_FIRST = 2   # findings that are always shown: the driver, and what torch sees


def show(console: Console, examination: Examination) -> None:
    """Every finding, and the verdict over all."""
    for _, findings in groupby(examination.findings, key=_group):
        _show_group(console, list(findings))
    console.print(_verdict(examination), highlight=False)


def show_short(console: Console, examination: Examination) -> None:
    """One line where all is well; else what is not, below the two findings that come first."""
    findings = examination.findings
    wrong = [each for each in findings[_FIRST:] if each.verdict in (WARNING, FAULT)]
    if wrong or any(each.verdict in (WARNING, FAULT) for each in findings[:_FIRST]):
        for _, some in groupby([*findings[:_FIRST], *wrong], key=_group):
            _show_group(console, list(some))
    console.print(_verdict(examination), highlight=False)


def _group(finding: Finding) -> str:
    return finding.group if finding.machine is None else f"machine {finding.machine}"


def _show_group(console: Console, findings: list[Finding]) -> None:
    table = Table(box=None, pad_edge=False, show_header=False, title=_group(findings[0]), title_justify="left",
                  title_style="bold")
    longest = max(len(finding.check) for finding in findings)
    for width in (_VERDICT_WIDTH, min(max(longest, _NARROW), _WIDE)):
        table.add_column(width=width, overflow="fold")
    table.add_column(ratio=1)
    for finding in findings:
        said = Text(finding.evidence)
        if finding.remedy:
            said.append(f"\n-> {finding.remedy}", style="bold")
        table.add_row(Text(_SHORT.get(finding.verdict, finding.verdict), style=_STYLES.get(finding.verdict, "dim")),
                      finding.check, said)
    console.print(table)
    console.print()


def _verdict(examination: Examination) -> Text:
    verdict = examination.verdict
    return Text.assemble("rankwise doctor: ", (verdict, _STYLES[verdict]), f" ({examination.sentence()})")
