"""One examination from start to end: the facts of this machine and their checks, then ranks on its devices."""

from __future__ import annotations

from collections.abc import Callable

from rankwise import environment
from rankwise.doctor.checks import examine as check
from rankwise.doctor.examination import Examination
from rankwise.doctor.facts import Facts, Task
from rankwise.doctor.facts.reading import read_facts
from rankwise.doctor.finding import Finding, Seen, fault, not_applicable, ok
from rankwise.doctor.nominal import between_ranks
from rankwise.settings import Settings
from rankwise.world import World

_RANKS = "ranks"


def look(settings: Settings) -> Examination:
    """This machine, without starting ranks."""
    facts = _facts(settings)
    return Examination(findings=check(facts), own_words=facts.own_words)


def look_and_start(settings: Settings, tell: Callable[[str], None]) -> Examination:
    """This machine, then a rank on each of its devices, with those of the other machines; `tell` is given what is done.

    Raises UsageError for devices that are not here, or more of a CPU than have room in its memory.
    """
    facts = _facts(settings)
    findings = check(facts)
    if not _can_start(facts):
        return _with(findings, facts, [_of_ranks(not_applicable("No ranks are started: torch cannot be imported."))])
    from rankwise.doctor.ranks.starting import devices_here
    devices = devices_here(settings, None if facts.host_or_not in facts.unread() else facts.host.room_bytes)
    if devices * settings.node_range[1] == 1:
        return _with(findings, facts, [_of_ranks(not_applicable("One device: there is nothing to exchange."))])
    return _started(settings.having(devices=devices), facts, findings, tell)


def take_part(world: World, settings: Settings, show: Callable[[Examination], None]) -> int:
    """As one rank of a job that another launcher started; rank 0 shows the examination. Returns all ranks' exit code.
    """
    from rankwise.doctor.ranks.conclusion import examination
    from rankwise.doctor.ranks.report import Report
    from rankwise.doctor.ranks.steps import machine_of
    from rankwise.doctor.ranks.taking import take_part as take
    facts = None
    if world.local_rank == 0:
        address, step = environment.store_address(), environment.step()
        nodes = -(-world.size // world.local_size) if step is None else step.nodes
        facts = read_facts(Task(nodes=nodes, node_rank=machine_of(world),
                                endpoint=f"{address[0]}:" if address else None), limit_seconds=settings.timeout)
    findings, words = (check(facts), facts.own_words) if facts is not None else ([], ())

    def conclude(reports: list[Report]) -> int:
        on_gpus = any(report.backend == "nccl" for report in reports)
        found = examination(reports, findings, words, between_ranks(facts, on_gpus=on_gpus) if facts else None)
        show(found)
        return found.exit_code

    return take(world, conclude, lambda code: code, lambda step: None, accelerator=settings.accelerator,
                limit_seconds=settings.timeout, findings=findings, own_words=words)


def _facts(settings: Settings) -> Facts:
    task = Task(nodes=settings.node_range[1], node_rank=settings.node_rank, endpoint=settings.endpoint)
    return read_facts(task, limit_seconds=settings.timeout)


def _can_start(facts: Facts) -> bool:
    return facts.software_or_not not in facts.unread() and facts.software.torch is not None


def _started(settings: Settings, facts: Facts, findings: list[Finding], tell: Callable[[str], None]) -> Examination:
    from rankwise.device import kind_of_device
    from rankwise.doctor.ranks.conclusion import examination
    from rankwise.doctor.ranks.rank import Assignment
    from rankwise.doctor.ranks.starting import run
    link = between_ranks(facts, on_gpus=kind_of_device(settings.accelerator) == "cuda")
    ended = run(settings, Assignment(accelerator=settings.accelerator, limit_seconds=settings.timeout,
                                     findings=tuple(findings), own_words=facts.own_words, link=link), tell)
    if ended.reports:
        return examination(ended.reports, findings, facts.own_words, link, ended.problem)
    if settings.node_rank > 0 and ended.exit_code is not None:
        words = "with a fault" if ended.exit_code else "without a fault"
        seen = (fault if ended.exit_code else ok)(f"the ranks of all machines ended {words}: machine 0 shows them.")
        return _with(findings, facts, [_of_ranks(seen)])
    step = f" Its last step was `{ended.step}`." if ended.step else ""
    return _with(findings, facts, [_of_ranks(fault(
        f"The ranks left no result. {ended.problem}{step}", "Start it on every machine, with the same --nodes and "
        "--endpoint; rankwise doctor --quick shows this machine alone."))])


def _of_ranks(seen: Seen) -> Finding:
    return Finding.of(_RANKS, "all ranks", seen)


def _with(findings: list[Finding], facts: Facts, more: list[Finding]) -> Examination:
    return Examination(findings=[*findings, *more], own_words=facts.own_words)
