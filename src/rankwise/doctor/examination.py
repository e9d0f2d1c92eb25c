"""What one examination found: the findings, what was measured, and the words in it that must not leave this machine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rankwise.doctor import finding
from rankwise.doctor.finding import VERDICTS, Finding


@dataclass(frozen=True, kw_only=True)
class Examination:
    """All findings in the order of their showing; `measurements` are plain values, empty where no ranks were started.
    """

    findings: list[Finding]
    own_words: tuple[str, ...]
    measurements: dict[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        return finding.worst(self.findings)

    @property
    def exit_code(self) -> int:
        return finding.exit_code(self.findings)

    def counts(self) -> dict[str, int]:
        """How many findings have each verdict."""
        return {verdict: sum(each.verdict == verdict for each in self.findings) for verdict in VERDICTS}

    def sentence(self) -> str:
        """`no fault, 2 warnings, 20 checks ok, 12 not applicable`."""
        counts = self.counts()
        return (f"{_number(counts['fault'], 'fault')}, {_number(counts['warning'], 'warning')}, "
                f"{counts['ok']} checks ok, {counts['not applicable']} not applicable")


def _number(count: int, what: str) -> str:
    return f"{count or 'no'} {what}{'s' * (count > 1)}"
