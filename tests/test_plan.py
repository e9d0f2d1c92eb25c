"""`rankwise plan`: what it makes of trials whose times are known, and the command."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

import browser
from launches import RANKWISE, run
from rankwise.errors import RankwiseError
from rankwise.plan import report
from rankwise.plan.batchsize import changes
from rankwise.plan.findings import Result, as_values, findings, result_of
from rankwise.plan.links import Link, link
from rankwise.plan.measurement import Measured, measure, sizes
from rankwise.plan.prediction import Plan, least_paying, predict
from rankwise.plan.webpage import page_of
from rankwise.trials import RankTrial, Trial

ARTIFACTS = Path(__file__).parent.parent / "artifacts"
BATCH = 48
FIXED, PER_ROW, UPDATE = 0.004, 0.001, 0.006        # seconds; two thirds of a micro-batch are backward
STATES, OWN, ROW_BYTES = 4 * (30 << 20), 50 << 20, 1 << 20
GRADIENTS = [(2 << 20, 0.1), (20 << 20, 0.5), (8 << 20, 1.0)]   # bytes, and shares of backward: two buckets
SLOW = Link(name="slow", latency_seconds=0.001, bytes_per_second=1e9, spread=0.1, source="stated")


class KnownTrials:
    """Trials of a training whose times and bytes are known; `memory_rows` is what fits at once."""

    def __init__(self, noise: float = 0.0, memory_rows: int = BATCH, failure: str = "") -> None:
        self._noise, self._memory_rows, self._failure = noise, memory_rows, failure
        self.asked: list[tuple[int | None, int]] = []

    def run(self, *, steps: int, warm_up: int, micro_batch: int | None, tell: Callable[[int], None],
            **others: Any) -> Trial:
        assert others == {"mode": "single", "devices": 1, "arrivals": True}
        self.asked.append((micro_batch, steps))
        if self._failure or (micro_batch or BATCH) > self._memory_rows:
            return Trial(failure=self._failure or "RuntimeError: CUDA out of memory.")
        turns = -(-BATCH // (micro_batch or BATCH))
        seconds = turns * FIXED + BATCH * PER_ROW
        steps_seconds = [(seconds + UPDATE) * (1 + self._noise * (-1) ** step) for step in range(steps)]
        backward = seconds * 2 / 3
        rank = RankTrial(
            rank=0, world_size=1, mode="single", first_step_at=0.0, step_seconds=steps_seconds,
            split={"data": 0.0, "forward": seconds / 3, "backward": backward, "communication": 0.0,
                   "optimizer": UPDATE, "other": 0.0},
            samples=BATCH * steps, global_batch=BATCH, micro_batches=turns * steps,
            memory_bytes=[round(STATES + OWN + ROW_BYTES * BATCH / turns)],
            model={"parameters": 30 << 18, "parameter_bytes": 30 << 20, "gradient_bytes": 30 << 20, "buffer_bytes": 0,
                   "optimizer_bytes": 60 << 20},
            arrivals=[(size, share * backward / turns) for size, share in GRADIENTS])
        tell(steps)
        return Trial(ranks=[rank])


def measured(most_devices: int = 8, capacity_bytes: int | None = None, **known: Any) -> Measured:
    return measure(KnownTrials(**known), most_devices, steps=20, capacity_bytes=capacity_bytes,  # type: ignore[arg-type]
                   tell=lambda what, step: None)


def capacity_for(rows: int) -> int:
    """Memory into which so many rows fit, and half of another."""
    return round(STATES + OWN + (rows + 0.5) * ROW_BYTES)


def planned(found: Measured, **changes: Any) -> Plan:
    return replace(Plan(computation=found.computation, memory=found.memory, global_batch=found.global_batch,
                        devices_per_node=1, inside=SLOW, between=SLOW, backend="gloo"), **changes)


def played(devices: int, rows: float) -> float:
    """A step by its events: forward, backward, each bucket when it is there and the link is free, the update."""
    computed = FIXED + PER_ROW * rows
    forward, backward = computed / 3, computed * 2 / 3
    free = 0.0
    for size, share in ((2 << 20, 0.1), (28 << 20, 1.0)):
        passed = 2 * (devices - 1) * (0.001 + size / devices / 1e9)
        free = max(free, forward + share * backward) + passed
    return max(free, forward + backward) + UPDATE


@settings(deadline=None)
@given(st.integers(2, 48))
def test_a_step_is_predicted_as_its_events_come(devices: int) -> None:
    """Measured on one device without noise, the prediction is the step as played through, ragged slices and all."""
    step = predict(planned(measured()), devices)
    assert step.step_seconds == pytest.approx(played(devices, -(-BATCH // devices)), rel=1e-6)
    assert step.samples_per_second == pytest.approx(BATCH / step.step_seconds)
    assert step.efficiency == pytest.approx((FIXED + BATCH * PER_ROW + UPDATE) / step.step_seconds / devices)
    assert step.least_seconds < step.step_seconds < step.most_seconds


def test_the_model_is_measured_where_slices_will_be() -> None:
    """From the whole batch to the smallest slice in equal ratios; fewer steps where they have more micro-batches."""
    trials = KnownTrials()
    found = measure(trials, 8, steps=20, capacity_bytes=None, tell=lambda what, step: None)  # type: ignore[arg-type]
    assert trials.asked == [(None, 20), (24, 10), (12, 5), (6, 5)]
    assert (found.global_batch, found.computation.update_seconds) == (BATCH, pytest.approx(UPDATE))
    line = found.computation.micro_batch_seconds.line
    assert (line.fixed, line.slope) == (pytest.approx(FIXED), pytest.approx(PER_ROW))
    assert sizes(50, 4) == [50, 25, 13]
    assert sizes(64, 1024)[-1] == 1
    assert len(sizes(10 ** 6, 10 ** 6)) == 5
    assert sizes(1, 8) == [1]


def test_what_the_steps_vary_is_in_the_range() -> None:
    """Without noise and bends the range is the link's; steps that vary by 20 % make it wider."""
    still, varying = (planned(measured(noise=noise)) for noise in (0.0, 0.2))
    assert still.computation.error(20) < 1e-6
    assert 0.02 < varying.computation.error(20) < 0.2
    assert predict(varying, 2).most_seconds > predict(still, 2).most_seconds
    alone = predict(still, 1)
    assert alone.least_seconds == pytest.approx(alone.most_seconds)


def test_memory_is_taken_apart() -> None:
    """States, what is the process's own, and a MiB a row, as the trials had them."""
    memory = measured(capacity_bytes=capacity_for(10)).memory
    assert memory.row_bytes == pytest.approx(ROW_BYTES, rel=1e-3)
    assert memory.other_bytes == pytest.approx(OWN, rel=1e-3)
    assert memory.most_rows("ddp", 1) == 10


def test_what_does_not_fit_is_accumulated() -> None:
    """Ten rows fit: 48 on one device are five micro-batches, 24 on two are three; the last one's backward reduces."""
    plan = planned(measured(capacity_bytes=capacity_for(10)))
    one, two = predict(plan, 1), predict(plan, 2)
    assert [one.micro_batches, two.micro_batches, predict(plan, 8).micro_batches] == [5, 3, 1]
    assert one.step_seconds == pytest.approx(5 * FIXED + BATCH * PER_ROW + UPDATE, rel=1e-6)
    assert two.step_seconds == pytest.approx(played(2, 8) + 2 * (FIXED + 8 * PER_ROW), rel=1e-6)


def test_a_batch_that_is_too_large_to_measure_is_cut() -> None:
    """Where the whole batch runs out of memory, the largest of 64, 8 and 1 rows that fits is the first trial."""
    trials = KnownTrials(memory_rows=10)
    found = measure(trials, 8, steps=20, capacity_bytes=None, tell=lambda what, step: None)  # type: ignore[arg-type]
    assert [bound for bound, _ in trials.asked] == [None, 64, 8, 6]
    assert found.global_batch == BATCH
    with pytest.raises(RankwiseError, match="could not be measured") as error:
        measured(failure="Rank 0 of 1 failed: ValueError: it is so\nTraceback")
    assert "ValueError: it is so" in str(error.value)
    assert "Traceback" not in str(error.value)


def test_more_devices_stop_paying_where_half_is_lost() -> None:
    """The first doubling after which samples a second grow by less than half; over a link that costs nothing, none."""
    plan = planned(measured())
    speed = {devices: BATCH / played(devices, -(-BATCH // devices)) for devices in (2, 4, 8, 16, 32)}
    speed[1] = BATCH / (FIXED + BATCH * PER_ROW + UPDATE)
    expected = next(devices for devices in (1, 2, 4, 8, 16) if speed[2 * devices] < 1.5 * speed[devices])
    stop = least_paying(plan)
    assert stop is not None
    assert stop.devices == expected
    free = replace(SLOW, latency_seconds=0.0, bytes_per_second=1e15)
    cheap = replace(plan.computation, update_seconds=0.0, micro_batch_seconds=replace(
        plan.computation.micro_batch_seconds, points=tuple((float(rows), rows * PER_ROW) for rows in (1, 48))))
    assert least_paying(planned(measured(), inside=free, between=free, computation=cheap, global_batch=64)) is None


def test_the_global_batch_is_never_changed_silently() -> None:
    """The same batch: the same training. Another one: updates, both rules with their factors, and small data sets."""
    assert "stays 64" in changes(64, 64)[0]
    said = " ".join(changes(64, 1024))
    for words in ("1024 instead of 64", "16 times fewer updates", "Goyal", "Malladi", "McCandlish", "Shallue",
                  "rate times 16", "rate times 4,", "10,240 samples, for example, would have 10 updates"):
        assert words in said
    assert "4 times as many updates" in changes(64, 16)[0]


def result(fitting_rows: int = 100, **changes: Any) -> Result:
    found = measured(capacity_bytes=capacity_for(fitting_rows))
    return result_of("train", "cpu, 2 cores", found, planned(found, **changes), [2, 8, 64])


def test_a_plan_is_told_in_words_and_numbers() -> None:
    """The sentences have the numbers that the values have; the terminal shows them all, within its width."""
    values, said = as_values(result()), " ".join(findings(result()))
    assert f"stop paying at {values['stops_paying_at']}" in said
    assert "4.00 ms and 1.00 ms a sample" in said
    assert "no work for 16 of 64 devices" in said
    assert "has 100 samples" in said
    assert "nothing has to be accumulated" in said
    assert "accumulated with --micro-batch 10," in " ".join(findings(result(fitting_rows=10)))
    console = Console(width=80, record=True, soft_wrap=True)
    report.show(console, result())
    text = console.export_text()
    assert not any(line.count("…") for line in text.splitlines())
    assert f"{values['steps'][1]['samples_per_second']:,.0f}" in text
    assert json.loads(json.dumps(values, allow_nan=False)) == json.loads(json.dumps(values))


def test_a_slice_that_was_not_measured_is_marked() -> None:
    """A larger global batch has slices beyond the measured sizes; they are marked, and none of the others."""
    steps = result(global_batch=8 * BATCH).steps
    assert [step.is_extrapolated for step in steps] == [True, True, False, False]
    console = Console(width=80, record=True)
    report.show(console, result(global_batch=8 * BATCH))
    assert "*: fewer or more samples" in console.export_text()


@pytest.mark.skipif(browser.find() is None, reason="needs Chromium, which is not here")
def test_the_page_in_a_browser(tmp_path: Path) -> None:
    """No error, no request, three charts with the numbers of plan.json, at two widths; screenshots are kept."""
    page = tmp_path / "plan.html"
    page_of(result()).write(page)
    with browser.opened() as chromium:
        for width in (390, 1280):
            chromium.open(page.as_uri(), width=width, dark=width < 500, touch=width < 500)
            chromium.screenshot(ARTIFACTS / f"plan-{width}.png")
            assert chromium.complaints == []
            assert chromium.requests == [page.as_uri()]
            assert chromium.evaluate("document.documentElement.scrollWidth") <= width
        shown = [chromium.evaluate(f"document.getElementById('chart-{number}').data.map((trace) => trace.y)")
                 for number in range(3)]
        steps = chromium.evaluate("JSON.parse(document.getElementById('data').textContent).values.steps")
    assert steps == json.loads(json.dumps(as_values(result())["steps"]))
    assert shown[0][0] == [step["samples_per_second"] for step in steps]
    assert shown[1][1] == [pytest.approx(1e3 * step["exposed_seconds"]) for step in steps]
    assert shown[2][3] == [pytest.approx(step["device_bytes"]["zero3"] / 1e6) for step in steps]


@pytest.mark.parametrize(("options", "said"), [
    (["toy", "--devices", "0"], "--devices has 0"), (["toy", "--link", "fast"], "--link is fast"),
    (["toy", "--link", "10gbit", "--link-inside", "nvlink"], "no link inside"),
    (["plain.py"], "does not use rankwise"),
    (["toy", "--link", "10gbit", "--output", "plain.py"], "cannot be written to")])
def test_what_cannot_be_planned_is_refused(options: list[str], said: str, tmp_path: Path) -> None:
    """Before anything is measured: three lines, and exit code 2."""
    (tmp_path / "plain.py").write_text("print(1)\n")
    ended = run([*RANKWISE, "plan", *options], tmp_path)
    assert ended.code == 2, ended.text
    assert said in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.slow
def test_a_recipe_is_planned(tmp_path: Path) -> None:
    """Trials and a link of two ranks, for real, past the smaller last batch of an epoch; JSON, and both files."""
    ended = run([*RANKWISE, "plan", "toy", "--devices", "2", "--threads", "1", "--steps", "16", "--json", "--output",
                 "out"], tmp_path)
    assert ended.code == 0, ended.text
    values = json.loads(ended.out)
    assert values == json.loads((tmp_path / "out" / "plan.json").read_text())
    assert values["global_batch"]["measured"] == 64
    assert values["memory"]["gradient_bytes"] == 4 * (10 * 50 + 50 + 50 + 1)
    assert [step["rows"] for step in values["steps"]] == [64, 32]
    assert values["links"]["between"]["name"] == "measured here"
    assert not (tmp_path / "runs").exists()
    assert link("--link", "1gbit").over("gloo").latency_seconds > link("--link", "1gbit").over("nccl").latency_seconds
