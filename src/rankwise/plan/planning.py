"""One plan from start to end: the trials, the links, and the predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rankwise.jobprogress import Progress
from rankwise.launcher.target import Target
from rankwise.plan import here
from rankwise.plan.findings import Result, result_of
from rankwise.plan.links import Link
from rankwise.plan.measurement import measure
from rankwise.plan.prediction import Plan
from rankwise.settings import Settings
from rankwise.trials import Trials

_JOBS = 6   # at most: the link, and a trial for each size


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is to be planned; a link that is None is measured here, a global batch that is None is the training's."""

    devices: list[int]
    devices_per_node: int
    inside: Link | None
    between: Link | None
    global_batch: int | None
    steps: int


def plan(target: Target, arguments: Sequence[str], settings: Settings, request: Request, folder: Path) -> Result:
    """Measure `target` on one device, in `folder`, and predict.

    Raises UsageError where a link has to be measured and cannot be, and RankwiseError where the training fails.
    """
    machine = here.machine(settings.accelerator, request.devices_per_node)
    trials = Trials(target, arguments, settings, folder=folder)
    with Progress(request.steps, _JOBS) as progress:
        progress.tell("the link", 0)
        inside, between = _links(settings, request, machine.backend, folder)
        measured = measure(trials, max(request.devices), steps=request.steps, capacity_bytes=machine.memory_bytes,
                           tell=progress.tell)
    planned = Plan(computation=measured.computation, memory=measured.memory,
                   global_batch=request.global_batch or measured.global_batch,
                   devices_per_node=request.devices_per_node, inside=inside, between=between, backend=machine.backend)
    return result_of(target.name, machine.name, measured, planned, request.devices)


def _links(settings: Settings, request: Request, backend: str, folder: Path) -> tuple[Link, Link]:
    """Inside a node and between nodes. Two devices are measured once, for whichever of the two is not given."""
    inside, between = (link and link.over(backend) for link in (request.inside, request.between))
    if between is not None and (inside is not None or request.devices_per_node == 1):
        return inside or between, between
    measured = here.measured_link(settings, folder)
    assumed = replace(measured, source=f"{measured.source} A network may be another: give --link.")
    return inside or measured, between or assumed
