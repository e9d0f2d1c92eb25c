"""A finding: what a check saw, whether that is well, and what to change where it is not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

OK, WARNING, FAULT, NOT_APPLICABLE = "ok", "warning", "fault", "not applicable"
VERDICTS = (OK, NOT_APPLICABLE, WARNING, FAULT)   # the worst last


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What one check saw: a verdict, the evidence for it, and the remedy, as a command where there is one.

    `private` are words in it that must not leave this machine: names, addresses, values.
    """

    verdict: str
    evidence: str
    remedy: str = ""
    private: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What the check of this group and name saw; `machine` is set where it was not on this one."""

    group: str
    check: str
    verdict: str
    evidence: str
    remedy: str = ""
    private: tuple[str, ...] = ()
    machine: int | None = None

    @classmethod
    def of(cls, group: str, check: str, seen: Seen) -> Finding:
        return cls(group=group, check=check, verdict=seen.verdict, evidence=seen.evidence, remedy=seen.remedy,
                   private=seen.private)


def ok(evidence: str, *, private: Iterable[str] = ()) -> Seen:
    """All is well."""
    return Seen(verdict=OK, evidence=evidence, private=tuple(private))


def warning(evidence: str, remedy: str = "", *, private: Iterable[str] = ()) -> Seen:
    """A training runs, and may be slower than it could be, or fail later."""
    return Seen(verdict=WARNING, evidence=evidence, remedy=remedy, private=tuple(private))


def fault(evidence: str, remedy: str = "", *, private: Iterable[str] = ()) -> Seen:
    """A training fails, or computes what is wrong."""
    return Seen(verdict=FAULT, evidence=evidence, remedy=remedy, private=tuple(private))


def not_applicable(evidence: str) -> Seen:
    """There is nothing here that this check could look at."""
    return Seen(verdict=NOT_APPLICABLE, evidence=evidence)


def worst(findings: Sequence[Finding]) -> str:
    """The verdict over all: `fault`, `warning` or `ok`."""
    verdicts = {each.verdict for each in findings}
    return next((verdict for verdict in (FAULT, WARNING) if verdict in verdicts), OK)


def exit_code(findings: Sequence[Finding]) -> int:
    """1 where there is a fault, else 0."""
    return int(worst(findings) == FAULT)
