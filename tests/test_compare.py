"""`rankwise compare`: what follows from trials whose times are known, and the command on a real training."""

from __future__ import annotations

import io
import json
import math
import random
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import browser
from rankwise import cli
from rankwise.compare.causes import losses
from rankwise.compare.layouts import Choice, Layout, Refusal, choose
from rankwise.compare.machine import Machine
from rankwise.compare.measured import reason
from rankwise.compare.noise import is_beyond, middle, noise, ratios, t_quantile
from rankwise.compare.pages import page_of
from rankwise.compare.result import Result
from rankwise.compare.rounds import CouldNotRunError, measure, order, steps_of_a_second
from rankwise.compare.sameness import judge
from rankwise.compare.scaling import Scaling
from rankwise.compare.table import show
from rankwise.compare.values import as_values
from rankwise.compare.verdict import verdict
from rankwise.errors import UsageError
from rankwise.settings import Settings
from rankwise.trials import RankTrial, Trial

ARTIFACTS = Path(__file__).parent.parent / "artifacts"
ALONE, DP, DDP, DDP4 = (Layout(mode="single"), Layout(mode="dp", devices=2), Layout(mode="ddp", devices=2),
                        Layout(mode="ddp", devices=4))
MACHINE = Machine(kind="cpu", name="a processor", cores=8, asked_threads=1, load=0.5, torch="2.13.0", python="3.12",
                  platform="L")
SPLIT = {"data": 0.0, "forward": 0.03, "backward": 0.06, "communication": 0.0, "optimizer": 0.01, "other": 0.0}


def trial(*seconds: float, world_size: int = 1, split: Mapping[str, float] = SPLIT, samples: int = 64,
          loss: float | None = 0.5, memory: Sequence[int] = (100_000_000,), **more: Any) -> Trial:
    """A job whose ranks took so many seconds for each step; rank 0 is a tenth faster than the others."""
    share = 0.0 if loss is None else 32 / world_size   # of the weight of 32
    part = loss * share if loss is not None and math.isfinite(loss) else None
    ranks = [RankTrial(
        rank=rank, world_size=world_size, mode="any", first_step_at=0.0,
        step_seconds=[each * (0.9 if rank == 0 < world_size - 1 else 1.0) for each in seconds], split=dict(split),
        communication_total=0.02 if world_size > 1 else None, communication_from="a clock", wire_bytes=1e6,
        samples=samples * len(seconds), micro_batches=len(seconds), loss=part, loss_weight=share,
        memory_bytes=[size + rank for size in memory], model={}, arrivals=[])
        for rank in range(world_size)]
    return Trial(**{"ranks": ranks, "failure": "", "start_up_seconds": 4.0, **more})


class Fake:
    """Runs that take what a function says, and are written down."""

    def __init__(self, seconds: Callable[[Layout, int], float | Trial | str]) -> None:
        self.seconds, self.calls = seconds, []  # type: ignore[var-annotated]

    def run(self, *, steps: int, warm_up: int, tell: Callable[[int], None], arguments: Sequence[str] = (),
            **changes: Any) -> Trial:
        layout = Layout(**changes)
        number = sum(each == layout for each, _ in self.calls)
        self.calls.append((layout, list(arguments)))
        tell(warm_up + steps)
        found = self.seconds(layout, number)
        if isinstance(found, str):
            return Trial(ranks=[], failure=found, start_up_seconds=None)
        return found if isinstance(found, Trial) else trial(found, found, found, world_size=layout.processes)


def compared(seconds: Callable[[Layout, int], float | Trial | str], *others: Layout, rounds: int = 3,
             scaling: Scaling | None = None, machine: Machine = MACHINE, refusals: Sequence[Refusal] = ()) -> Result:
    choice = Choice(baseline=ALONE, others=others, refusals=refusals)
    chosen = scaling or Scaling()
    measured = measure(Fake(seconds), choice, chosen, steps=3, rounds=rounds, tell=lambda what, steps: None)
    return Result(target="train.py", scaling=chosen, machine=machine, steps=3, rounds=rounds, measurements=measured,
                  refusals=refusals)


# Which layouts


def test_the_layouts_come_from_the_table_of_modes() -> None:
    """One device once, and each mode of the table on each number; one process takes several devices only with ours."""
    found = choose(Settings(accelerator="cpu"), devices="1,2,4", modes=None, amp="no", uses_rankwise=True)
    assert [str(each) for each in (found.baseline, *found.others)] == [
        "single on 1", "dp on 2", "dp on 4", "ddp on 2", "ddp on 4"]
    assert not found.refusals
    plain = choose(Settings(accelerator="cpu"), devices="2", modes=None, amp="no", uses_rankwise=False)
    assert [str(each) for each in plain.others] == ["ddp on 2"]
    assert [str(each.layout) for each in plain.refusals] == ["dp on 2"]
    assert "does not use rankwise" in plain.refusals[0].reason


def test_a_new_mode_comes_in_through_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mode that is added to the table is compared, without a word of it in this command."""
    from rankwise import modes, settings
    monkeypatch.setitem(modes.MODES, "zero", modes.MODES["ddp"])
    monkeypatch.setattr(settings, "MODES", (*settings.MODES, "zero"))
    found = choose(Settings(accelerator="cpu"), devices="2", modes="zero", amp="no", uses_rankwise=True)
    assert [str(each) for each in found.others] == ["zero on 2"]


def test_each_precision_has_its_one_device() -> None:
    found = choose(Settings(accelerator="cpu"), devices="2", modes="ddp", amp="no,bf16", uses_rankwise=True)
    assert [str(each) for each in (found.baseline, *found.others)] == [
        "single on 1", "ddp on 2", "single on 1 bf16", "ddp on 2 bf16"]


@pytest.mark.parametrize(("options", "said"), [
    ({"devices": "1", "modes": None, "amp": "no"}, "nothing to compare"),
    ({"devices": "2", "modes": "single", "amp": "no"}, "nothing to compare"),
    ({"devices": "2,x", "modes": None, "amp": "no"}, "--devices has x"),
    ({"devices": "2", "modes": "ring", "amp": "no"}, "--modes has ring"),
    ({"devices": "2", "modes": None, "amp": "int8"}, "--amp has int8"),
    ({"devices": ",", "modes": None, "amp": "no"}, "--devices is empty"),
])
def test_options_that_cannot_be_used(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        choose(Settings(accelerator="cpu"), uses_rankwise=True, **options)


def test_more_accelerators_than_are_here_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layout that needs a device that is not here is left out with the reason; where nothing is left, it is said."""
    from rankwise import device
    monkeypatch.setattr(device, "kind_of_device", lambda asked: "cuda")
    monkeypatch.setattr(device, "count", lambda kind: 2)
    found = choose(Settings(), devices="2,4", modes="ddp", amp="no", uses_rankwise=True)
    assert [str(each) for each in found.others] == ["ddp on 2"]
    assert [(str(each.layout), each.reason) for each in found.refusals] == [
        ("ddp on 4", "It has 2 cuda devices, one for each rank.")]
    with pytest.raises(UsageError, match="ddp on 4 cannot run here: It has 2 cuda devices"):
        choose(Settings(), devices="4", modes="ddp", amp="no", uses_rankwise=True)


# Scaling


def test_the_batch_that_a_target_is_given() -> None:
    """Strong: as it is. Weak: times the devices. Without an option of ours: nothing."""
    assert Scaling().arguments(4) == []
    assert Scaling(batch_size=60).arguments(4) == ["--batch-size", "60"]
    assert Scaling(batch_size=60, is_weak=True).arguments(4) == ["--batch-size", "240"]
    with pytest.raises(UsageError, match="--weak is given without --batch-size"):
        Scaling(is_weak=True)
    with pytest.raises(UsageError, match="does not use rankwise"):
        Scaling(batch_size=64, uses_rankwise=False)


# Rounds


@given(st.integers(2, 9), st.integers(3, 8))
def test_every_round_has_every_layout_once(count: int, rounds: int) -> None:
    """Orders are permutations, and over the rounds no slot is early or late by more than half of what they rotate."""
    orders = [order(range(count), turn, rounds) for turn in range(rounds)]
    assert all(sorted(each) == list(range(count)) for each in orders)
    for slot in range(count):
        mean_place = statistics.fmean(each.index(slot) for each in orders)
        assert abs(mean_place - (count - 1) / 2) <= max(0.5, count / rounds / 2)


def test_the_baseline_runs_twice_a_round_and_batches_grow_in_weak_scaling() -> None:
    fake = Fake(lambda layout, number: 0.1)
    measure(fake, Choice(baseline=ALONE, others=[DP, DDP, DDP4], refusals=[]), Scaling(batch_size=8, is_weak=True),
            steps=3, rounds=3, tell=lambda what, steps: None)
    rounds = [[layout for layout, _ in fake.calls[first:first + 5]] for first in (0, 5, 10)]
    assert len(fake.calls) == 15
    assert rounds[0] == [ALONE, DP, DDP, ALONE, DDP4]
    assert all(layouts.count(ALONE) == 2 for layouts in rounds)
    assert {str(layout): words[1] for layout, words in fake.calls} == {
        "single on 1": "8", "dp on 2": "16", "ddp on 2": "16", "ddp on 4": "32"}


def test_a_layout_that_fails_is_not_run_again() -> None:
    """It is listed with the first line of its failure; one that fails later keeps its rounds, and that is said."""
    def seconds(layout: Layout, number: int) -> float | str:
        if layout == DP:
            return "Rank 0 of 1 failed: MisuseError\nIt was given dp.\n  Dp cannot do it.\n  Give ddp."
        return "It was killed." if layout == DDP4 and number == 1 else 0.1
    result = compared(seconds, DP, DDP, DDP4)
    assert [(str(each.layout), each.reason) for each in result.missing] == [
        ("dp on 2", "It was given dp. Dp cannot do it.")]
    assert [(str(row.layout), row.rounds, row.failure) for row in result.rows] == [
        ("single on 1", 3, ""), ("ddp on 2", 3, ""), ("ddp on 4", 1, "It was killed.")]
    said = shown(result)
    assert "ddp on 4 has 1 of 3 rounds; then it failed: It was killed." in said
    assert "dp on 2 could not run: It was given dp." in said
    assert reason("Rank 1 of 2 failed: ValueError: no\nTraceback") == "Rank 1 of 2 failed: ValueError: no"


def test_a_baseline_that_fails_ends_the_comparison() -> None:
    with pytest.raises(CouldNotRunError, match="single on 1 failed") as caught:
        compared(lambda layout, number: "Rank 0 failed: ValueError: no data" if layout == ALONE else 0.1, DDP)
    assert caught.value.exit_code == 2
    assert "no data" in str(caught.value)


@pytest.mark.parametrize(("seconds", "steps"), [(0.5, 30), (0.011, 91), (0.0001, 300)])
def test_as_many_steps_as_take_a_second(seconds: float, steps: int) -> None:
    fake = Fake(lambda layout, number: seconds)
    assert steps_of_a_second(fake, ALONE, Scaling(), lambda what, made: None) == steps
    with pytest.raises(CouldNotRunError, match="single on 1 failed"):
        steps_of_a_second(Fake(lambda layout, number: "no data"), ALONE, Scaling(), lambda what, made: None)


def test_nothing_beside_the_baseline() -> None:
    """Where every other layout fails in the first round, no second one is run."""
    fake = Fake(lambda layout, number: 0.1 if layout == ALONE else "Rank 1 of 2 failed: ValueError: no port")
    with pytest.raises(CouldNotRunError, match="ddp on 2: Rank 1 of 2 failed: ValueError: no port"):
        measure(fake, Choice(baseline=ALONE, others=[DDP, DDP4], refusals=[]), Scaling(), steps=3, rounds=3,
                tell=lambda what, steps: None)
    assert len(fake.calls) == 4


# Statistics


def test_ratios_are_paired_within_rounds() -> None:
    """A machine that is ten times slower in one round changes no ratio."""
    base, ours = {0: 1.0, 1: 10.0, 2: 1.0}, {0: 0.5, 1: 5.0, 2: 0.5}
    assert ratios(ours, base) == [0.5, 0.5, 0.5]
    assert ratios({0: 1.0}, {1: 1.0}) == []
    assert middle({0: 4.0, 1: 1.0}, {0: 9.0}) == {0: 6.0}


@pytest.mark.parametrize(("freedom", "expected"), [(5, 2.5706), (7, 2.3646), (9, 2.2622), (19, 2.0930), (99, 1.9842)])
def test_quantiles_of_student(freedom: int, expected: float) -> None:
    """Against the printed table."""
    assert t_quantile(0.975, freedom) == pytest.approx(expected, rel=2e-3)


def test_noise_by_hand() -> None:
    """Three ratios with a control, worked out from the definition: logs 0.1, 0.2 and 0.3, and 0.1, -0.1 and 0."""
    found, control = ([math.exp(each) for each in logs] for logs in ((0.1, 0.2, 0.3), (0.1, -0.1, 0.0)))
    # deviations 0.02, control 0.02, together over 5 degrees of freedom; three rounds; the median's 1.2533
    expected = 2.5706 * 1.2533 * math.sqrt(0.04 / 5 / 3)
    assert math.log(noise(found, control)) == pytest.approx(expected, rel=2e-3)
    assert is_beyond(found, control)   # 0.2 against 0.166
    assert noise([2.0], []) == math.inf


@pytest.mark.parametrize(("found", "control", "beyond"), [
    ([0.8, 0.81, 0.79], [1.01, 0.99, 1.0], True), ([1.3, 1.31, 1.29], [1.01, 0.99, 1.0], True),
    ([0.8, 0.81, 0.79], [1.2, 0.7, 1.0], False), ([0.5, 0.9, 1.3], [1.0, 1.0, 1.0], False),
    ([1.0, 1.0, 1.0], [1.0, 1.0, 1.0], False), ([0.9999, 0.9999, 0.9999], [1.0, 1.0, 1.0], False),
    ([], [1.0, 1.0, 1.0], False)])
def test_more_than_noise(found: list[float], control: list[float], beyond: bool) -> None:
    """Further from 1 than A/A and its own scatter explain; less than a thousandth is never more than noise."""
    assert is_beyond(found, control) is beyond


@pytest.mark.parametrize("rounds", [3, 8])
def test_where_nothing_differs_little_is_found(rounds: int) -> None:
    """Of 1,500 comparisons of equal layouts 2 to 3 %, as the rule promises; of a real fifth most, of a tenth with more
    rounds more."""
    generator = random.Random(4)

    def run(factor: float) -> dict[int, float]:
        return {number: factor * math.exp(generator.gauss(0, 0.03)) for number in range(rounds)}

    def share_found(factor: float, comparisons: int) -> float:
        found = []
        for _ in range(comparisons):
            first, again = run(1.0), run(1.0)
            found.append(is_beyond(ratios(run(factor), middle(first, again)), ratios(again, first)))
        return statistics.fmean(found)

    assert 0.01 < share_found(1.0, 1500) < 0.04
    assert share_found(1.2, 300) > 0.95
    assert (share_found(1.1, 300) > 0.9) is (rounds > 3)


# What a job measured


def test_a_step_takes_as_long_as_its_slowest_rank() -> None:
    """Medians over steps of the slowest rank; samples, memory and loss over the ranks."""
    result = compared(lambda layout, number: trial(0.1, 0.3, 0.2, world_size=layout.processes, memory=[10, 50]), DDP)
    row = result.rows[1]
    assert row.step_seconds == pytest.approx(0.2)
    assert row.samples_a_second == pytest.approx(64 / 0.2)
    assert (row.first_memory_bytes, row.most_memory_bytes) == (10, 51)   # of two ranks with two devices each
    assert row.loss == pytest.approx(0.5)
    assert row.communication_seconds == pytest.approx(0.02)


def test_speed_up_and_efficiency() -> None:
    """Against both runs of the baseline of the same round; the spread is that of the rounds."""
    base = [0.10, 0.10, 0.12, 0.12, 0.40, 0.40]   # two in each round, of which the last was slow
    result = compared(lambda layout, number: base[number] if layout == ALONE else [0.05, 0.08, 0.20][number], DDP)
    alone, ours = result.rows
    assert (alone.speed_up, alone.efficiency, alone.sameness) == (1.0, None, None)
    assert not alone.is_beyond_noise
    assert ours.speed_up == pytest.approx(2.0)
    assert (ours.lowest_speed_up, ours.highest_speed_up) == (pytest.approx(1.5), pytest.approx(2.0))
    assert ours.efficiency == pytest.approx(1.0)
    assert (ours.lowest_step_seconds, ours.highest_step_seconds) == (0.05, 0.20)
    assert ours.is_beyond_noise
    assert result.control == pytest.approx([1.0, 1.0, 1.0])


def test_weak_scaling_compares_samples() -> None:
    """Twice the samples in 1.25 times the time: 1.6 times as fast, at 80 %; losses are not compared."""
    def job(layout: Layout, number: int) -> Trial:
        return trial(*[0.1 if layout == ALONE else 0.125] * 3, world_size=layout.processes, samples=64 * layout.devices)
    result = compared(job, DDP, scaling=Scaling(batch_size=64, is_weak=True))
    row = result.rows[1]
    assert (row.speed_up, row.efficiency) == (pytest.approx(1.6), pytest.approx(0.8))
    assert row.sameness is None
    assert "Loss: not compared" in shown(result)


def test_a_plain_script_compares_steps() -> None:
    """Without samples and without a split: that is said, and no number is made up."""
    def job(layout: Layout, number: int) -> Trial:
        plain = trial(*[0.1 if layout == ALONE else 0.06] * 3, world_size=layout.processes, samples=0, loss=None)
        return replace(plain, ranks=[replace(rank, split={}, communication_total=None) for rank in plain.ranks])
    result = compared(job, DDP, scaling=Scaling(uses_rankwise=False))
    row = result.rows[1]
    assert (row.samples_a_second, row.split, row.loss, row.sameness) == (None, None, None, None)
    assert row.speed_up == pytest.approx(0.1 / 0.06)
    said = shown(result)
    assert "Where a step goes was not measured" in said
    assert "Why is not known" in said
    page_of(result, verdict(result), {}).to_html()


# The same training?


def test_the_loss_tells_another_training() -> None:
    """A difference of rounding is none; one in the third digit is, unless the training differs from itself as much."""
    def losing(other: float, again: float = 0.5) -> Result:
        return compared(lambda layout, number: trial(0.1, world_size=layout.processes, loss=other if layout != ALONE
                                                     else 0.5 if number % 2 == 0 else again), DDP)
    rounded, wrong, unseeded = losing(0.50001), losing(0.51), losing(0.51, again=0.49)
    assert rounded.rows[1].sameness is not None
    assert rounded.rows[1].sameness.difference == pytest.approx(2e-5, rel=1e-3)
    assert rounded.rows[1].sameness.is_same
    assert "the same training, as far as one loss tells" in shown(rounded)
    assert wrong.rows[1].sameness is not None
    assert not wrong.rows[1].sameness.is_same
    assert "ddp on 2 is not the same training, it seems" in shown(wrong)
    assert unseeded.rows[1].sameness is not None
    assert unseeded.rows[1].sameness.is_same
    assert "One device differs from itself by 2.0e-02" in shown(unseeded)


def test_losses_that_are_no_numbers() -> None:
    assert judge([None], [0.5], amp="no") is None
    assert judge([], [0.5], amp="no") is None
    same = judge([math.nan], [math.nan], amp="no")
    assert same is not None
    assert same.is_same
    wrong = judge([math.nan], [0.5], amp="bf16")
    assert wrong is not None
    assert not wrong.is_same
    assert verdict(compared(lambda layout, number: trial(0.1, world_size=layout.processes, loss=math.inf
                                                         if layout == DDP else 0.5), DDP)).best.layout == ALONE


# Causes and verdict


def test_losses_against_a_perfect_division() -> None:
    """What is beyond a half of one device's time, the largest first; all communication is beyond it."""
    ours = {**SPLIT, "forward": 0.02, "backward": 0.05, "communication": 0.03, "optimizer": 0.01, "data": 0.001}
    found = [(each.of, round(each.seconds, 6)) for each in losses(ours, SPLIT, 2)]
    assert found == [("communication", 0.03), ("computation", 0.025), ("optimizer", 0.005), ("data", 0.001)]
    assert losses({name: each / 4 for name, each in SPLIT.items()}, SPLIT, 4) == []
    found = [(each.of, round(each.seconds, 6)) for each in losses(ours, SPLIT, 2, waiting=0.02)]
    assert found[1:3] == [("waiting", 0.02), ("communication", 0.01)]


def test_waiting_for_a_slow_rank_is_no_transport() -> None:
    """Rank 1 computes longer, and rank 0 waits for it: what rank 1 waits for is the transport."""
    def job(layout: Layout, number: int) -> Trial:
        if layout == ALONE:
            return trial(0.1, split=split_of(0.1))
        made = trial(0.1, world_size=2)
        return replace(made, ranks=[replace(rank, split=split_of(0.1, communication=waits)) for rank, waits in
                                    zip(made.ranks, (0.05, 0.01), strict=True)])
    result = compared(job, DDP)
    assert result.rows[1].waiting_seconds == pytest.approx(0.02)   # the mean of 50 and 10 ms, less 10 ms
    said = verdict(result)
    assert "20.0 ms of waiting for the slowest rank" in said.why
    assert "10.0 ms of communication (all-reduce of gradients)" in said.why
    assert "ranks that are equally fast" in said.change


def split_of(step: float, **parts: float) -> dict[str, float]:
    """A split of which the rest is backward."""
    return {**dict.fromkeys(SPLIT, 0.0), **parts, "backward": step - sum(parts.values())}


def job_of(steps: Mapping[Layout, tuple[float, Mapping[str, float]]]) -> Callable[[Layout, int], Trial]:
    def job(layout: Layout, number: int) -> Trial:
        step, split = steps[layout]
        return trial(*[step * (1 + 0.001 * number)] * 3, world_size=layout.processes, split=split)
    return job


def test_a_verdict_for_several_devices() -> None:
    """What to use, by how much, why, and what would change it; the other mode is compared with it."""
    result = compared(job_of({ALONE: (0.1, split_of(0.1, forward=0.03)), DP: (0.09, split_of(0.09, forward=0.03)),
                              DDP: (0.06, split_of(0.06, communication=0.01, forward=0.02))}), DP, DDP)
    found = verdict(result)
    assert found.best.layout == DDP
    assert found.use.startswith("Use ddp on 2: 1.67 times as fast as single on 1 (60.1 ms a step instead of 100 ms), "
                                "an efficiency of 8")
    assert "10.0 ms of communication (all-reduce of gradients)" in found.why
    assert "a faster link" in found.change
    assert any(line.startswith("dp on 2 takes 1.50 times as long as ddp on 2") for line in found.remarks)


def test_a_verdict_without_losses() -> None:
    """Two devices that take half the time lose nothing, also where they share the cores, such as in waits."""
    found = verdict(compared(job_of({ALONE: (0.1, split_of(0.1)), DDP: (0.05, split_of(0.05))}), DDP,
                             machine=replace(MACHINE, cores=1)))
    assert found.why == "Why: ddp on 2 divides the work with hardly any loss."
    assert found.change == "What would change it: more devices, for these lose hardly anything."


def test_a_verdict_for_one_device() -> None:
    """Two devices that share the cores gain nothing: stay, and what would change it is cores."""
    shared = replace(MACHINE, cores=2, asked_threads=None)
    result = compared(job_of({ALONE: (0.1, split_of(0.1)), DDP: (0.12, split_of(0.12, communication=0.01))}), DDP,
                      machine=shared)
    found = verdict(result)
    assert found.best.layout == ALONE
    assert found.use == ("Use single on 1: nothing that is the same training is faster by more than the noise. The "
                         "fastest other layout is ddp on 2, at 0.83 times its speed, which is more than the noise.")
    assert "60.0 ms of forward and backward" in found.why
    assert "one device computes with 2 threads, and 2 such devices share 2 cores" in found.change
    assert "--threads 1 compares devices of one core" in found.change
    assert "slices of this size" not in found.change


def test_fewer_devices_win_where_more_bring_nothing() -> None:
    """Four devices that are as fast as two, up to the noise, are not worth it."""
    def job(layout: Layout, number: int) -> float:
        if layout == ALONE:
            return [0.100, 0.104, 0.100, 0.103, 0.100, 0.104][number]
        return 0.060 if layout == DDP else [0.059, 0.059, 0.060][number]
    found = verdict(compared(job, DDP, DDP4))
    assert found.best.layout == DDP


def test_of_equal_layouts_the_first_precision_and_then_the_fastest() -> None:
    """On as many devices the precision that was asked for first; then the mode that is faster, if only by the noise."""
    half = replace(DDP, amp="bf16")
    alone = replace(ALONE, amp="bf16")

    def job(layout: Layout, number: int) -> float:
        steps = {ALONE: 0.1 * (1 + 0.02 * (number % 2)), DP: 0.0605, DDP: 0.06, alone: 0.1, half: 0.0599}
        return steps[layout]
    assert verdict(compared(job, DP, DDP, alone, half)).best.layout == DDP


def test_two_precisions_on_one_device() -> None:
    half = Layout(mode="single", amp="bf16")
    found = verdict(compared(lambda layout, number: 0.1 if layout == ALONE else 0.05, half))
    assert found.use == ("Use single on 1 bf16: 2.00 times as fast as single on 1 (50.0 ms a step instead of 100 ms).")
    assert found.why == ""
    assert found.remarks[0].startswith("bf16 computes with other digits: the loss after the last step is 0.5 instead")


def test_another_training_is_not_the_one_to_use() -> None:
    """A layout that is twice as fast and has another loss is told, and not recommended."""
    found = verdict(compared(lambda layout, number: trial(*[0.1 if layout == ALONE else 0.05] * 3, loss=0.5 if
                                                          layout == ALONE else 0.6, world_size=layout.processes), DDP))
    assert found.best.layout == ALONE
    assert "ddp on 2, at 2.00 times its speed, which is more than the noise." in found.use
    assert "ddp on 2 is not the same training, it seems" in found.remarks[0]


def test_noise_that_hides_differences_is_told() -> None:
    """Where A/A is far apart; and that the machine had other work, where it had."""
    def job(layout: Layout, number: int) -> float:
        return 0.1 * (1 + 0.3 * (number % 2)) if layout == ALONE else 0.1
    quiet, busy = compared(job, DDP), compared(job, DDP, machine=replace(MACHINE, load=5.0))
    said = verdict(quiet).remarks[-1]
    assert re.match(r"Differences of up to \d+ % are hidden by noise. A quiet machine, more --steps or more", said)
    assert "The machine had other work before it began (5.0 processes at a time, on 8 cores). A quiet" in (
        verdict(busy).remarks[-1])


# The command


def call(*words: str) -> int:
    """The exit code of `rankwise compare words`, in this process."""
    with pytest.raises(SystemExit) as caught:
        cli.main(["compare", *words])
    assert isinstance(caught.value.code, int)
    return caught.value.code


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A script whose trials are not run: a tenth of a second a step, over the number of devices."""
    (tmp_path / "train.py").write_text("import rankwise as rw\nrw.launch(print)\n")
    monkeypatch.setattr("rankwise.trials.Trials", lambda *args, **options: Fake(
        lambda layout, number: 0.1 / layout.devices))
    monkeypatch.chdir(tmp_path)
    return "train.py"


def test_the_command(script: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Table and verdict on the output, both files in a folder of its own, whose page has the values of the JSON."""
    assert call(script, "--devices", "2", "--accelerator", "cpu", "--batch-size", "64") == 0
    said = capsys.readouterr().out
    assert "Strong scaling: the global batch of 64 samples" in said
    assert "Use ddp on 2: 2.00 times as fast as single on 1" in said or "Use dp on 2: 2.00 times" in said
    [folder] = (tmp_path / "compare").iterdir()
    assert folder.name.startswith("train-")
    assert f"Written: compare/{folder.name}/compare.json and compare/{folder.name}/compare.html" in said
    values = json.loads((folder / "compare.json").read_text())
    assert (values["target"], values["steps"], values["rounds"]) == ("train.py", 3, 3)
    page = (folder / "compare.html").read_text()
    assert json.loads(page.split('id="data">', 1)[1].split("</script>", 1)[0])["values"] == values


@pytest.mark.parametrize(("words", "said"), [
    (["--rounds", "2"], "--rounds"), (["--weak"], "--weak is given without --batch-size"),
    (["--devices", "1"], "nothing to compare"), (["--output", "/proc/rankwise"], "--output is /proc/rankwise"),
])
def test_a_command_that_cannot_be_run(script: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                      words: list[str], said: str) -> None:
    """Exit code 2, a message, and nothing is begun."""
    assert call(script, "--accelerator", "cpu", *words) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert shown.out == ""
    assert not (tmp_path / "compare").exists()


# Output


def shown(result: Result, width: int = 100) -> str:
    written = io.StringIO()
    show(Console(width=width, soft_wrap=True, file=written), result, verdict(result))
    return written.getvalue()


def test_the_table_fits_a_terminal_of_eighty_columns() -> None:
    result = compared(job_of({ALONE: (0.1, split_of(0.1)), DP: (0.09, split_of(0.09)), DDP: (0.06, split_of(
        0.06, communication=0.01))}), DP, DDP)
    lines = shown(result).splitlines()
    for head in ("step", "data", "memory, first"):
        row = next(number for number, line in enumerate(lines) if line.split()[:1] == ["layout"] and head in line)
        assert all(len(line.rstrip()) <= 80 for line in lines[row:row + 4])


def test_the_json_holds_every_number_and_no_infinity() -> None:
    """Numbers of the rows and of each round, plain; what is not measured or not finite is null."""
    result = compared(lambda layout, number: trial(0.1, world_size=layout.processes, loss=math.nan), DDP,
                      refusals=[Refusal(layout=DP, reason="Not here.")])
    values = as_values(result, verdict(result))
    again = json.loads(json.dumps(values, allow_nan=False))
    assert again == values
    assert [each["layout"] for each in values["layouts"]] == ["single on 1", "ddp on 2"]
    assert values["layouts"][1]["rounds"][2]["step_seconds"] == pytest.approx(0.1)
    assert values["layouts"][1]["loss"] is None
    assert values["could_not_run"] == [{"layout": "dp on 2", "mode": "dp", "devices": 2, "amp": "no",
                                        "reason": "Not here."}]
    assert values["control"] == [1.0, 1.0, 1.0]
    assert values["layouts"][1]["noise"] == pytest.approx(0.001, rel=1e-3)
    assert values["verdict"][0].startswith("Use ")


def test_the_page_has_the_numbers_of_the_json(tmp_path: Path) -> None:
    """compare.html carries the values of compare.json, and every layout in its charts."""
    result = compared(job_of({ALONE: (0.1, split_of(0.1)), DDP: (0.06, split_of(0.06, communication=0.01))}), DDP)
    found = verdict(result)
    values = as_values(result, found)
    page_of(result, found, values).write(tmp_path / "compare.html")
    text = (tmp_path / "compare.html").read_text()
    data = json.loads(text.split('id="data">', 1)[1].split("</script>", 1)[0])
    assert data["values"] == values
    bars = data["charts"][0]["traces"][0]
    assert bars["x"][0] == ["single on 1", "ddp on 2"]
    assert bars["plotly"]["y"] == [each["step_seconds"] * 1000 for each in values["layouts"]]


@pytest.mark.skipif(browser.find() is None, reason="needs Chromium, which is not here")
def test_the_page_in_a_browser(tmp_path: Path) -> None:
    """No complaint, no request, every chart; the numbers that it shows are those of its data, at two widths."""
    result = compared(job_of({ALONE: (0.1, split_of(0.1)), DP: (0.09, split_of(0.09)),
                              DDP: (0.0612345, split_of(0.0612345, communication=0.01))}), DP, DDP)
    found = verdict(result)
    values = as_values(result, found)
    page_of(result, found, values).write(tmp_path / "compare.html")
    url = (tmp_path / "compare.html").as_uri()
    with browser.opened() as chromium:
        for width, dark in ((1280, False), (390, True)):
            chromium.open(url, width=width, dark=dark, touch=dark)
            chromium.screenshot(ARTIFACTS / f"compare-{width}-{'dark' if dark else 'light'}.png")
            assert chromium.complaints == []
            assert chromium.requests == [url]
            assert chromium.evaluate("document.documentElement.scrollWidth") <= width
        drawn = chromium.evaluate("[...document.querySelectorAll('.chart')].map((chart) => chart.data.map((t) => t.y))")
        shown = chromium.evaluate("JSON.parse(document.getElementById('data').textContent).values.layouts")
        rows = chromium.evaluate("[...[...document.querySelectorAll('table')].find((table) => table.caption.textContent"
                                 ".startsWith('Speed;')).tBodies[0].rows].map((row) => [...row.cells].map("
                                 "(cell) => cell.textContent))")
    assert shown == values["layouts"]
    assert drawn[0] == [[each["step_seconds"] * 1000 for each in shown]]
    assert len(drawn) == 4
    assert [row[0] for row in rows] == ["single on 1", "dp on 2", "ddp on 2"]
    for row, each in zip(rows, shown, strict=True):
        assert float(row[1]) == pytest.approx(each["step_seconds"] * 1000, rel=1e-3)
        assert float(row[4].replace(",", "")) == pytest.approx(each["samples_a_second"], rel=1e-3)
        assert float(row[5]) == pytest.approx(each["speed_up"], rel=1e-3)
