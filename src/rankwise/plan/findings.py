"""What a plan says in words; each sentence follows from its numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rankwise.plan.batchsize import changes
from rankwise.plan.curves import Curve
from rankwise.plan.links import Link
from rankwise.plan.measurement import Measured
from rankwise.plan.memory import LAYOUTS
from rankwise.plan.prediction import Plan, Step, least_paying, predict
from rankwise.quantities import byte_count, percent, seconds

COVERED = (
    "The range holds the noise of the steps, what lies between the measured sizes, and the spread of the links, all to "
    "one side at once. It does not hold: devices of unequal speed and the wait for the slowest, computation that is "
    "slowed down by communication beside it, links that are shared with others, data that many devices read from one "
    "place, and collectives in the forward pass (synchronised BatchNorm).")


@dataclass(frozen=True, kw_only=True)
class Result:
    """A plan, its steps on the devices that were asked for (one device first), and where more of them stop paying."""

    target: str
    device: str
    measured: Measured
    plan: Plan
    steps: list[Step]
    stop: Step | None


def result_of(target: str, device: str, measured: Measured, plan: Plan, devices: list[int]) -> Result:
    """The predictions for `devices`, and for one."""
    return Result(target=target, device=device, measured=measured, plan=plan,
                  steps=[predict(plan, number) for number in sorted({1, *devices})], stop=least_paying(plan))


def findings(result: Result) -> list[str]:
    """Sentences: what was measured, where more devices stop paying, memory, and what the range covers."""
    return [_measured(result), *_links(result.plan), _paying(result), *_idle(result), *_memory(result), COVERED]


def sources(result: Result) -> dict[str, str]:
    """Where the figures of each link come from."""
    plan = result.plan
    return {"between nodes": plan.between.source, **({"inside a node": plan.inside.source}
                                                     if plan.devices_per_node > 1 else {})}


def batch(result: Result) -> list[str]:
    """Sentences on the global batch."""
    return changes(result.measured.global_batch, result.plan.global_batch)


def _measured(result: Result) -> str:
    computation, line = result.measured.computation, result.measured.computation.micro_batch_seconds.line
    points = computation.micro_batch_seconds.points
    return (f"Measured on one device ({result.device}): a micro-batch takes {seconds(line.fixed)} and "
            f"{seconds(line.slope)} a sample more, at {len(points)} sizes from {points[0][0]:.4g} to "
            f"{points[-1][0]:.4g} samples, which this line meets within {percent(line.error)}; an update takes "
            f"{seconds(computation.update_seconds)}. Gradients: {byte_count(result.measured.memory.gradient_bytes)}.")


def _links(plan: Plan) -> list[str]:
    if plan.devices_per_node == 1:
        return [_link("The link between devices", plan.between), *_backend(plan)]
    return [_link("The link between nodes", plan.between), _link("The link inside a node", plan.inside),
            *_backend(plan)]


def _backend(plan: Plan) -> list[str]:
    """That a plan made on a CPU is one for CPUs: a message costs much more there."""
    if plan.backend != "gloo":
        return []
    return ["Devices are taken for CPUs that talk by gloo, as here, which takes its own time for each message; a link "
            "with a latency of yours (--link 100gbit:20us) replaces it. A plan for GPUs is made on a machine with one."]


def _link(where: str, link: Link) -> str:
    return (f"{where} ({link.name}): {byte_count(link.bytes_per_second)}/s and {seconds(link.latency_seconds)} "
            f"a message, give or take {percent(link.spread)}.")


def _paying(result: Result) -> str:
    if result.stop is None:
        return (f"Every doubling pays up to {2 ** (result.plan.global_batch.bit_length() - 1)} devices: each adds more "
                "than half of what as many devices brought before.")
    stop, twice = result.stop, predict(result.plan, 2 * result.stop.devices)
    more, exposed = twice.samples_per_second / stop.samples_per_second - 1, twice.exposed_seconds / twice.step_seconds
    brought = f"{100 * more:.1f} % more" if more >= 0 else f"{-100 * more:.1f} % fewer"
    return (f"More devices stop paying at {stop.devices}: {twice.devices} would bring {brought} samples a second, less "
            f"than half of what they could. With {twice.devices}, {percent(exposed)} of the step is communication that "
            f"nothing hides; the rest is computation, of which {seconds(_fixed_seconds(result))} a step do not shrink "
            "with the slice.")


def _fixed_seconds(result: Result) -> float:
    """What a step takes for any number of rows: the update, and what each micro-batch costs beside its rows."""
    computation = result.measured.computation
    return computation.update_seconds + max(0.0, computation.micro_batch_seconds.line.fixed)


def _idle(result: Result) -> list[str]:
    rows, most = result.plan.global_batch, result.steps[-1].devices
    return [f"A global batch of {rows} has no work for {most - rows} of {most} devices."] if most > rows else []


def _memory(result: Result) -> list[str]:
    memory = result.plan.memory
    capacity = byte_count(memory.capacity_bytes)
    if memory.capacity_bytes is None:
        return ["How much memory a device has is not known here, so what fits is not said."]
    rows = memory.most_rows("ddp", 1)
    if rows is None:
        return [f"Memory was not seen to grow with the samples of a micro-batch, so the largest that fits into "
                f"{capacity} is not known."]
    if rows == 0:
        return [f"Not one sample fits into the {capacity} of a device."]
    planned = result.plan.global_batch
    rest = (f"That holds a global batch of {planned}: nothing has to be accumulated." if rows >= planned else
            f"A larger slice is accumulated with --micro-batch {rows}, and the global batch stays.")
    return [f"The largest micro-batch that fits into the {capacity} of a device has {rows:,} samples: "
            f"{byte_count(memory.states_bytes('ddp', 1))} of parameters, gradients and optimizer state, "
            f"{byte_count(memory.other_bytes)} of the process's own, {byte_count(memory.row_bytes)} a sample. {rest}"]


def as_values(result: Result) -> dict[str, Any]:
    """The result for `--json`: seconds, bytes and shares under names that say so."""
    plan, computation = result.plan, result.measured.computation
    return {
        "target": result.target, "device": result.device,
        "global_batch": {"measured": result.measured.global_batch, "planned": plan.global_batch},
        "measured": {"micro_batches": _points(computation.micro_batch_seconds),
                     "line": asdict(computation.micro_batch_seconds.line),
                     "backward": _points(computation.backward_seconds),
                     "update_seconds": computation.update_seconds, "noise": computation.noise,
                     "parameters": result.measured.parameters},
        "memory": asdict(plan.memory), "layouts": {name: layout.meaning for name, layout in LAYOUTS.items()},
        "links": {"inside": asdict(plan.inside), "between": asdict(plan.between),
                  "devices_per_node": plan.devices_per_node},
        "steps": [{**asdict(step), "efficiency": step.efficiency} for step in result.steps],
        "stops_paying_at": None if result.stop is None else result.stop.devices,
        "findings": findings(result), "sources": sources(result), "global_batch_changes": batch(result),
    }


def _points(curve: Curve) -> list[dict[str, float]]:
    return [{"rows": rows, "seconds": value} for rows, value in curve.points]
