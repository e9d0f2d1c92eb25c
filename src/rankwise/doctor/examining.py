"""One examination from start to end: the facts of this machine and their checks, then ranks on its devices."""

from __future__ import annotations

from rankwise.doctor.checks import examine as check
from rankwise.doctor.examination import Examination
from rankwise.doctor.facts import Task
from rankwise.doctor.facts.reading import read_facts
from rankwise.settings import Settings


def examine(settings: Settings, *, with_ranks: bool) -> Examination:
    """Look at this machine and, unless it is to be quick, start ranks on it."""
    task = Task(nodes=settings.node_range[1], node_rank=settings.node_rank, endpoint=settings.endpoint)
    facts = read_facts(task, limit_seconds=settings.timeout)
    return Examination(findings=check(facts), own_words=facts.own_words)
