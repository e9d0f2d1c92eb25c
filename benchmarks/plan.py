"""Predictions of `rankwise plan` against real runs on 2, 3 and 4 ranks, over links of known rates.

    python benchmarks/plan.py --links 1gbit,unshaped          needs root: hosts are network namespaces

One rank is measured, and the link between two; all else is predicted. Two cores cannot compute for four ranks, so in
the first training computation is a wait (benchmarks/waits.py), while parameters and all-reduces are real. The second is
a recipe, whose ranks share the cores: what that does to a prediction is to be seen, and no prediction knows it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from hosts import Host, hosts
from launches import RANKWISE, Launch
from rankwise.launcher.target import resolve
from rankwise.plan.linkfit import fitted
from rankwise.plan.links import Link
from rankwise.plan.measurement import Measured, measure
from rankwise.plan.prediction import Plan, Step, predict
from rankwise.settings import Settings
from rankwise.trials import Trials

HERE = Path(__file__).parent
UNSHAPED = "unshaped"
RANKS = (2, 3, 4)
_LIMIT_SECONDS = 300.0
_WARM_UP_STEPS = 3


@dataclass(frozen=True)
class Training:
    """A target, its options for a trial and for a run of so many steps, and where a run left its step times."""

    title: str
    target: str
    trial: list[str]
    run: Callable[[int, Path], list[str]]
    step_seconds: Callable[[Path, Path], list[float]]
    settings: list[str]


def _of_waits(times: Path, runs: Path) -> list[float]:
    return [later - earlier for earlier, later in pairwise(json.loads(times.read_text()))][_WARM_UP_STEPS - 1:]


def _of_log(times: Path, runs: Path) -> list[float]:
    """From the samples a second of each epoch, but for the first."""
    entries = [json.loads(line) for line in (runs / "it" / "metrics.jsonl").read_text().splitlines()]
    return [500 / entry["samples_per_second"] for entry in entries if "samples_per_second" in entry][1:]


TRAININGS = {
    "waits": Training("Computation is a wait; gradients of 42 MB, a global batch of 50", str(HERE / "waits.py"),
                      ["--steps", "20"], lambda steps, times: ["--steps", str(steps), "--times", str(times)],
                      _of_waits, []),
    "fashion": Training("Real computation on shared cores: recipe fashion, gradients of 82 kB, a global batch of 500",
                        "fashion", ["--batch-size", "500", "--epochs", "9"],
                        lambda steps, times: ["--batch-size", "500", "--epochs", str(steps)], _of_log,
                        ["--log-every", "10"]),   # an epoch has 10 steps
}


def on_hosts(found: list[Host], port: int, folder: Path, target: list[str], settings: list[str], options: list[str]
             ) -> None:
    """Run a target on these hosts, one rank each, to its end."""
    command = [*RANKWISE, "run", *target, "--accelerator", "cpu", "--mode", "ddp", "--devices", "1", "--threads", "1",
               "--name", "it", "--nodes", str(len(found)), "--endpoint", f"10.77.9.1:{port}", *settings]
    launches = [Launch([*command, "--node-rank", str(number), "--", *options], folder, host.prefix)
                for number, host in enumerate(found)]
    try:
        for launch in launches:
            ended = launch.ended(_LIMIT_SECONDS)
            if ended.code:
                raise SystemExit(ended.text)
    finally:
        for launch in launches:
            launch.end_all()


def link_between(found: list[Host], port: int, folder: Path, name: str) -> Link:
    """The link as all-reduces of two hosts show it."""
    file = folder / "link.json"
    on_hosts(found[:2], port, folder, ["-m", "rankwise.plan.allreduce"], [], [str(file)])
    seconds = {int(size): values for size, values in json.loads(file.read_text()).items()}
    return fitted(name, seconds, "All-reduces of two hosts.")


def measured_alone(training: Training) -> Measured:
    """One rank, as `rankwise plan` measures it."""
    with tempfile.TemporaryDirectory() as folder:
        trials = Trials(resolve(training.target), training.trial, Settings(accelerator="cpu", threads=1),
                        folder=Path(folder))
        return measure(trials, max(RANKS), steps=8, capacity_bytes=None, tell=lambda what, step: None)


def compared(name: str, training: Training, measured: Measured, rate: str, port: int) -> list[dict[str, Any]]:
    """Predicted and measured steps over one link."""
    rows = []
    with hosts(max(RANKS)) as found, tempfile.TemporaryDirectory() as folder:
        for host in found if rate != UNSHAPED else ():
            host.slow_down(rate)
        link = link_between(found, port, Path(folder), rate)
        plan = Plan(computation=measured.computation, memory=measured.memory, global_batch=measured.global_batch,
                    devices_per_node=1, inside=link, between=link, backend="gloo")
        for number, ranks in enumerate(RANKS, 1):
            place = Path(folder) / f"{ranks}"
            place.mkdir()
            steps = 8 if rate == "100mbit" else 14
            on_hosts(found[:ranks], port + number, place, [training.target], training.settings,
                     training.run(steps, place / "times"))
            seconds = training.step_seconds(place / "times", place / "runs")
            rows.append(row(name, link, predict(plan, ranks), seconds, predict(plan, 1).step_seconds))
            print(line(rows[-1]), flush=True)
    return rows


def row(name: str, link: Link, step: Step, seconds: list[float], alone_seconds: float) -> dict[str, Any]:
    """One line of the table, in seconds. The cores here cannot compute a step in less than `cores_seconds`."""
    median = statistics.median(seconds)
    return {"training": name, "link": link.name, "link_bytes_per_second": link.bytes_per_second,
            "link_latency_seconds": link.latency_seconds, "link_spread": link.spread, "ranks": step.devices,
            "predicted_seconds": step.step_seconds, "least_seconds": step.least_seconds,
            "most_seconds": step.most_seconds, "predicted_computation_seconds": step.computation_seconds,
            "predicted_communication_seconds": step.communication_seconds, "predicted_exposed_seconds":
            step.exposed_seconds, "measured_seconds": median, "measured_steps": len(seconds),
            "measured_range": [min(seconds), max(seconds)],
            "cores_seconds": None if name == "waits" else alone_seconds / min(step.devices, os.cpu_count() or 1),
            "error": step.step_seconds / median - 1}


HEADING = ("| link | ranks | computation, ms | all-reduces, ms | predicted, ms | range | measured, ms | error "
           "| the cores take at least, ms |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |")


def line(found: dict[str, Any]) -> str:
    """The same as a row of a Markdown table."""
    ms = {name: "-" if value is None else f"{1e3 * value:.0f}" for name, value in found.items()
          if name.endswith("_seconds")}
    return (f"| {found['link']} | {found['ranks']} | {ms['predicted_computation_seconds']} "
            f"| {ms['predicted_communication_seconds']} | {ms['predicted_seconds']} "
            f"| {ms['least_seconds']} to {ms['most_seconds']} | {ms['measured_seconds']} | {found['error']:+.1%} "
            f"| {ms['cores_seconds']} |")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--trainings", default="waits,fashion", help="waits, fashion, or both")
    options.add_argument("--links", default="100mbit,1gbit,unshaped", help="rates as tc writes them, and `unshaped`")
    options.add_argument("--output", type=Path, help="JSON file; what it has of other trainings and links is kept")
    asked = options.parse_args()
    rows: list[dict[str, Any]] = []
    began, port = time.monotonic(), 29600
    for name in asked.trainings.split(","):
        training = TRAININGS[name]
        measured = measured_alone(training)
        print(f"\n### {training.title}\n\n{HEADING}", flush=True)
        for rate in asked.links.split(","):
            rows += compared(name, training, measured, rate, port)
            port += 10
    print(f"\n{time.monotonic() - began:.0f} s, load {os.getloadavg()[0]:.1f}")
    if asked.output:
        keep(rows, asked.output)


def keep(rows: list[dict[str, Any]], file: Path) -> None:
    """Write the rows to `file`, in place of those of the same training and link."""
    new = {(row["training"], row["link"]) for row in rows}
    kept = json.loads(file.read_text())["rows"] if file.exists() else []
    kept = [row for row in kept if (row["training"], row["link"]) not in new]
    file.write_text(json.dumps({"load": os.getloadavg(), "rows": [*kept, *rows]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
