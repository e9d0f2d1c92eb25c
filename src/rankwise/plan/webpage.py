"""A plan as one HTML page: throughput and the parts of the step over the number of devices, and memory."""

from __future__ import annotations

from collections.abc import Mapping

from rankwise.page import Axis, Cell, Chart, Column, Page, Series, Table, lines, stacked_bars
from rankwise.plan.findings import Result, as_values, batch, findings, sources
from rankwise.plan.memory import LAYOUTS


def page_of(result: Result) -> Page:
    """The page, with the values of `plan.json` in its data."""
    lead = (f"Mode ddp, a global batch of {result.plan.global_batch} samples. One device is measured, all else is "
            "predicted.")
    page = Page(f"Plan: {result.target}", lead, values=as_values(result))
    page.section("What it comes to").points(findings(result))
    speed = page.section("Throughput").chart(_throughput(result)).table(_steps(result))
    speed.paragraph("A slice beyond the measured sizes is marked as extrapolated.")
    page.section("The step").chart(_parts(result))
    memory = page.section("Memory of a device").chart(_memory(result))
    memory.table(_by_layout("Largest micro-batch that fits (samples)", {
        step.devices: step.most_rows for step in result.steps}), folded="What fits")
    memory.table(_by_layout("Bytes that a device sends in a step (MB)", {
        step.devices: {name: _rounded(value / 1e6) for name, value in step.wire_bytes.items()}
        for step in result.steps}), folded="Bytes on the wire")
    page.section("The global batch").points(batch(result))
    page.section("Where the figures of the links come from").facts(sources(result))
    return page


def _throughput(result: Result) -> Chart:
    devices = [step.devices for step in result.steps]
    batch_rows, one = result.plan.global_batch, result.steps[0].samples_per_second
    predicted = Series(name="predicted", x=devices, y=[step.samples_per_second for step in result.steps],
                       low=[batch_rows / step.most_seconds for step in result.steps],
                       high=[batch_rows / step.least_seconds for step in result.steps])
    ideal = Series(name="if nothing were lost", x=devices, y=[one * number for number in devices])
    return lines("Samples per second", "The throughput falls behind that of devices which lose nothing to each other.",
                 x=Axis("devices", is_log=True), y=Axis("samples/s", is_log=True), series=[predicted, ideal])


def _parts(result: Result) -> Chart:
    names = [f"{step.devices:,}" for step in result.steps]
    parts = {"computation": [1e3 * step.computation_seconds for step in result.steps],
             "communication that nothing hides": [1e3 * step.exposed_seconds for step in result.steps]}
    return stacked_bars("Parts of the step", "Computation shrinks with the slice, communication does not.",
                        x=Axis("devices"), y=Axis("time (ms)"),
                        series=[Series(name=name, x=names, y=values) for name, values in parts.items()])


def _memory(result: Result) -> Chart:
    devices = [step.devices for step in result.steps]
    return lines("Memory of a device", "Sharded states shrink as devices are added.",
                 x=Axis("devices", is_log=True), y=Axis("memory (MB)"),
                 series=[Series(name=f"{name}: {layout.meaning}", x=devices,
                                y=[step.device_bytes[name] / 1e6 for step in result.steps])
                         for name, layout in LAYOUTS.items()])


def _steps(result: Result) -> Table:
    names = ("largest slice (samples)", "micro-batches", "step (ms)", "at least (ms)", "at most (ms)", "samples/s",
             "speed-up", "efficiency (%)", "communication (ms)", "not hidden (ms)")
    columns = [Column("devices"), *(Column(name, is_number=True) for name in names), Column("extrapolated")]
    return Table("Predicted steps", columns, [
        [f"{step.devices:,}", step.rows, step.micro_batches, *map(_rounded, (
            1e3 * step.step_seconds, 1e3 * step.least_seconds, 1e3 * step.most_seconds, step.samples_per_second,
            step.speed_up, 100 * step.efficiency, 1e3 * step.communication_seconds, 1e3 * step.exposed_seconds)),
         "yes" if step.is_extrapolated else "no"] for step in result.steps])


def _rounded(value: float) -> float:
    """Four digits: more than a prediction has; plan.json has them all."""
    return float(f"{value:.4g}")


def _by_layout(caption: str, values: Mapping[int, Mapping[str, Cell]]) -> Table:
    columns = [Column("devices"), *(Column(f"{name}: {layout.meaning}", is_number=True)
                                    for name, layout in LAYOUTS.items())]
    return Table(caption, columns, [[f"{devices:,}", *(found[name] for name in LAYOUTS)]
                                    for devices, found in values.items()])
