"""What `rankwise verify` makes of records: comparison, tolerance and diagnosis, over records written by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rankwise.errors import UsageError
from rankwise.verify import diagnose, experiments, ranks
from rankwise.verify.compare import compare, relative
from rankwise.verify.evidence import Evidence, Rank, State, Step, read
from rankwise.verify.experiments import Experiment
from rankwise.verify.findings import REMEDIES, Finding
from rankwise.verify.layouts import REFERENCE, Layout, layouts
from rankwise.verify.report import as_values, findings_of, notes
from rankwise.verify.tolerance import Tolerance
from rankwise.verify.verification import CouldNotRunError, Result, judged, verify
from rankwise.witness import changes

SAMPLES = [f"s{number}" for number in range(64)]
TOLERANCE = Tolerance(epsilon=2.0 ** -23, rows=8)


def step(loss: float = 1.0, *, rows: Sequence[str] = (), gradient: float = 2.0, bits: str = "same", lr: float = 0.1,
         seed: float = 1.0, **more: object) -> Step:
    return Step(gradient_norm=gradient, gradients={"weight": (gradient, bits), "bias": (0.0, "zero")},
                losses=[[loss * seed, loss]], lr=[lr], rows={"Net": list(rows)},
                settings=[{"lr": lr, "momentum": 0.9}], **more)  # type: ignore[arg-type]


def rank(steps: Sequence[Step], *, weights: str = "same", **more: object) -> Rank:
    states = {number: State(parameters={"weight": f"{weights}{number}", "bias": "b"}) for number in
              range(len(steps) + 1)}
    return Rank(**{"steps": steps, "states": states, **more})  # type: ignore[arg-type]


def evidence(*all_ranks: Rank, layout: str = "ddp on 2", weight: float = 1.0, initial: float = 0.5) -> Evidence:
    return Evidence(layout=layout, ranks=all_ranks, initial={"weight": torch.tensor([initial, 2.0])},
                    final={"weight": torch.tensor([weight, 2.0])})


def rows_of(number: int, count: int = 8) -> list[str]:
    return SAMPLES[(number - 1) * count:number * count]


def reference(steps: int = 4, **more: float) -> Evidence:
    return evidence(rank([step(rows=rows_of(number), **more) for number in range(1, steps + 1)]), layout="reference")


def halves(steps: int = 4, **more: float) -> Evidence:
    """Two ranks that do the same as the reference."""
    return evidence(*(rank([step(rows=rows_of(number)[part::2], **more) for number in range(1, steps + 1)])
                      for part in range(2)))


def codes(other: Evidence, expected: Evidence | None = None) -> list[str]:
    against = expected or reference(other.steps)
    found = diagnose.findings(against, other, compare(against, other, TOLERANCE), TOLERANCE)
    assert all(finding.remedy and finding.seen and finding.cause for finding in found)
    return [finding.code for finding in found]


# Comparison


def test_equal_runs_are_the_same() -> None:
    """Two ranks with halves of the samples, the same losses, gradients and weights: nothing is found."""
    compared = compare(reference(), halves(), TOLERANCE)
    assert compared.is_same
    assert compared.first is None
    assert compared.steps == 4
    assert codes(halves()) == []


def test_a_loss_beyond_the_tolerance_names_its_step_and_tensor() -> None:
    """The first step whose loss or gradient differs, and in it the tensor whose gradient does."""
    steps = [step(rows=rows_of(number), gradient=2.0 if number < 3 else 2.5) for number in range(1, 5)]
    compared = compare(reference(), evidence(rank(steps)), TOLERANCE)
    assert not compared.is_same
    assert (compared.first, compared.first_gradient) == (3, "weight")
    assert compared.gradient_norm.largest == pytest.approx(0.25)
    assert compared.loss.largest == 0


def test_weights_are_compared_in_units_of_their_rounding() -> None:
    """A difference of one rounding of float32 is allowed; one of a thousandth is not, and is named."""
    near, far = evidence(rank([step()]), weight=1 + 2.0 ** -23), evidence(rank([step()]), weight=1.002)
    first = evidence(rank([step()]))
    assert compare(first, near, TOLERANCE).is_same
    worst = compare(first, far, TOLERANCE).parameters[0]
    assert (worst.name, worst.is_allowed) == ("weight", False)
    assert worst.largest == pytest.approx(0.002, rel=1e-3)
    assert worst.relative == pytest.approx(0.001, rel=1e-3)       # beside the largest number, which is 2
    assert worst.roundings == pytest.approx(0.001 * 2 ** 23, rel=1e-3)


def test_a_buffer_is_told_apart_from_a_parameter() -> None:
    """What the record calls a buffer stands among the buffers."""
    ours = replace(evidence(rank([step()])), buffer_names=frozenset(["weight"]))
    compared = compare(ours, evidence(rank([step()]), weight=3.0), TOLERANCE)
    assert [tensor.name for tensor in compared.buffers] == ["weight"]
    assert not compared.parameters


def test_losses_that_are_no_numbers() -> None:
    """NaN on both sides is no difference, on one side it is."""
    assert relative(math.nan, math.nan) == 0
    assert relative(math.inf, math.inf) == 0
    assert relative(1.0, math.nan) == math.inf
    broken = evidence(rank([step(math.nan), step()]))
    assert compare(broken, broken, TOLERANCE).is_same
    assert compare(evidence(rank([step(), step()])), broken, TOLERANCE).first == 1


def test_the_same_bits_look_at_the_logged_losses() -> None:
    """With tolerance 0 a logged loss that differs in its last bit is found, and sums over ranks are left alone."""
    ours, theirs = replace(reference(), logged=[1.0, 0.5]), replace(halves(), logged=[1.0, 0.5])
    bits = Tolerance(epsilon=2.0 ** -23, rows=8, fixed=0.0)
    assert compare(ours, theirs, bits).is_same
    assert compare(ours, replace(theirs, logged=[1.0, math.nextafter(0.5, 1)]), bits).first == 2


# Tolerance


def test_zeros_of_another_sign_are_not_the_same_bits() -> None:
    bits = replace(TOLERANCE, fixed=0.0)
    for expected, found, same in ((0.0, -0.0, False), (math.nan, math.nan, True), (1.0, 1.0, True)):
        [pair] = compare(replace(reference(), final={"weight": torch.tensor([expected, 2.0])}),
                         replace(halves(), final={"weight": torch.tensor([found, 2.0])}), bits).parameters
        assert pair.is_allowed is same


def test_the_tolerance_grows_with_steps_rows_and_rounding() -> None:
    """It is linear in the steps, grows with the root of the rows, and follows the dtype."""
    assert TOLERANCE.at(10) == pytest.approx(10 * TOLERANCE.at(1))
    assert replace(TOLERANCE, rows=6400).at(1) == pytest.approx(10 * TOLERANCE.at(1))
    assert replace(TOLERANCE, epsilon=2.0 ** -52).at(1) == pytest.approx(TOLERANCE.at(1) * 2.0 ** -29)


def test_the_tolerance_follows_what_rounding_was_seen_to_do() -> None:
    """A training that makes roundings grow is allowed more, from that step on, and never above a limit."""
    sensitive = replace(TOLERANCE, measured=[0.0, 1e-4, 1e-4])
    assert sensitive.at(1) == TOLERANCE.at(1)
    assert sensitive.at(3) == pytest.approx(16e-4)
    assert replace(TOLERANCE, measured=[10.0]).at(1) == 0.05
    assert replace(sensitive, fixed=1e-9).at(3) == 1e-9


# Between the ranks


def two(ours: Rank, theirs: Rank) -> list[str]:
    return [finding.code for finding in ranks.findings(evidence(ours, theirs))]


def test_gradients_that_nobody_averages() -> None:
    """Gradients that differ between ranks in every tensor, or in some."""
    other = step(bits="other")
    every = Step(gradient_norm=2.0, gradients={"weight": (2.0, "x"), "bias": (0.0, "y")}, lr=[0.1],
                 settings=other.settings)
    assert two(rank([step()]), rank([every])) == ["not_reduced"]
    found, = ranks.findings(evidence(rank([step(), step()]), rank([step(), other])))
    assert (found.code, found.step, found.tensor, found.ranks) == ("not_reduced_partly", 2, "weight", (1,))


def test_weights_that_part_between_ranks() -> None:
    """Before the first update, or after it though the gradients are equal."""
    assert two(rank([step()]), rank([step()], weights="other")) == ["weights_differ_at_start"]
    moved = rank([step(), step()])
    states = {**moved.states, 2: State(parameters={"weight": "other", "bias": "b"})}
    found, = ranks.findings(evidence(rank([step(), step()]), replace(moved, states=states)))
    assert (found.code, found.step) == ("weights_part", 2)


def test_buffers_that_part() -> None:
    """The first step after which a buffer differs."""
    ours = rank([step()], states={0: State(), 1: State(buffers={"mean": "a"})})
    theirs = rank([step()], states={0: State(), 1: State(buffers={"mean": "b"})})
    found, = ranks.findings(evidence(ours, theirs))
    assert (found.code, found.step, found.tensor) == ("buffers_part", 1, "mean")


def test_learning_rates_that_part_explain_the_weights() -> None:
    """A plateau schedule on one rank's numbers is named; the weights that follow are not told besides."""
    ours = rank([step(plateaus=[1.0]), step(plateaus=[1.0])])
    theirs = rank([step(plateaus=[2.0]), step(plateaus=[2.0], lr=0.05)])
    theirs = replace(theirs, states={**theirs.states, 2: State(parameters={"weight": "other", "bias": "b"})})
    found, = ranks.findings(evidence(ours, theirs))
    assert (found.code, found.step, found.ranks) == ("learning_rate_on_ranks", 2, (1,))
    assert "ReduceLROnPlateau" in found.cause


def test_settings_that_part() -> None:
    """Another momentum on one rank."""
    other = replace(step(), settings=[{"lr": 0.1, "momentum": 0.8}])
    found, = ranks.findings(evidence(rank([step()]), rank([other])))
    assert found.code == "settings"
    assert "momentum of group 0 is 0.9 and 0.8" in found.seen


def test_clipping_on_each_rank() -> None:
    """The norms that were clipped by differ; where they are equal nothing is found."""
    assert two(rank([step(clips=[[3.0, 1.0]])]), rank([step(clips=[[4.0, 1.0]])])) == ["clip_per_rank"]
    assert two(rank([step(clips=[[3.0, 1.0]])]), rank([step(clips=[[3.0, 1.0]])])) == []


def test_ends_of_ranks() -> None:
    """A rank that returned earlier, ranks that wait, ranks that call different things, and a rank that failed."""
    short, long = rank([step()], how="returned", begun=False), rank([step(), step()], how="failed with RuntimeError")
    found = ranks.findings(evidence(short, long))
    assert (found[0].code, found[0].ranks) == ("unequal_steps", (0,))
    assert "rank 0: 1 steps" in found[0].seen
    stuck = ranks.findings(evidence(*(rank([step()], how="stuck", where=f"a.py:{line}") for line in (1, 2))))
    assert stuck[0].code == "stuck"
    assert "waiting at a.py:2" in stuck[0].seen
    said = "Ranks 0 and 1 call different things.\n  Here and there.\n  Do this."
    failed = [rank([step()], how="failed with MisuseError", error=said, begun=begun) for begun in (True, True, False)]
    assert two(*failed[:2]) == ["collectives"]
    assert two(*failed[1:]) == ["unequal_steps"]
    broken = replace(evidence(rank([step()], how="vanished"), rank([step()], how="failed with ValueError")),
                     failure="Rank 1 of 2 failed: ValueError")
    assert [finding.code for finding in ranks.findings(broken)] == ["could_not_run"]


# Against the reference


def test_learning_rates_scaled_by_the_ranks() -> None:
    """Two ranks with twice the rate, or the root of it; any other rate has its own name."""
    assert codes(halves(lr=0.2)) == ["learning_rate_scaled"]
    assert codes(halves(lr=0.1 * math.sqrt(2))) == ["learning_rate_scaled"]
    assert codes(halves(lr=0.13)) == ["learning_rate"]


def test_other_initial_weights() -> None:
    """Weights that are equal on the ranks, and not the reference's."""
    other = replace(halves(), initial={"weight": torch.tensor([0.7, 2.0])})
    assert codes(other) == ["initial_weights"]


def split(*parts: Sequence[Sequence[str]], loss: float = 1.5) -> Evidence:
    """Ranks with these rows in each of their steps, and another loss than the reference's, which is 1."""
    return evidence(*(rank([step(loss, rows=rows) for rows in steps]) for steps in parts))


def test_samples() -> None:
    """What can become of samples, each under its name."""
    whole = [rows_of(number) for number in (1, 2, 3, 4)]
    ours = [rows[:4] for rows in whole]
    theirs = [rows[4:] for rows in whole]
    assert codes(split(ours, theirs, loss=1.0)) == []
    assert codes(split(whole, whole, loss=1.0)) == ["samples_repeated"]
    twice = [rows_of(number, 16) for number in (1, 2, 3, 4)]
    assert codes(split([rows[:8] for rows in twice], [rows[8:] for rows in twice])) == ["batch_size_scaled"]
    assert codes(split([*ours[:3], [*ours[3], SAMPLES[0]]], theirs)) == ["samples_padded"]
    assert codes(split([*ours[:3], ours[3][:3]], theirs)) == ["samples_dropped"]
    assert codes(split(ours, [ours[0], *theirs[1:]])) == ["samples_overlap"]
    assert codes(split([["new"] * 4, *ours[1:]], [["newer"] * 4, *theirs[1:]])) == ["samples_changed"]
    assert codes(split([ours[1], ours[0], *ours[2:]], theirs)) == ["samples_order"]


def test_an_overlap_that_shows_only_in_a_later_step() -> None:
    """Ranks with orders of their own, whose first batches share nothing by chance."""
    first, second = SAMPLES[:16], [*SAMPLES[16:24], *SAMPLES[:8]]
    steps = [[rows[number:number + 4] for number in range(0, 16, 4)] for rows in (first, second)]
    assert codes(split(*steps)) == ["samples_overlap"]


def test_a_mean_of_means() -> None:
    """Ragged rows whose means count the same: proved by weighing them."""
    # 1.0 over 6 rows and 5.0 over 2 rows are 2.0 over 8; the mean of the means is 3.0
    rows = rows_of(1)
    parts = evidence(rank([step(1.0, rows=rows[:6], gradient=2.5)]), rank([step(5.0, rows=rows[6:], gradient=2.5)]))
    expected = evidence(rank([step(2.0, rows=rows)]))
    assert codes(parts, expected) == ["loss_not_weighted"]


def test_a_sum_of_gradients() -> None:
    """The gradient of two ranks is twice the reference's."""
    assert codes(halves(gradient=4.0)) == ["gradient_scaled"]


def test_losses_with_denominators_of_their_own() -> None:
    """What is left where the reference's loss lies between those of the ranks; nothing where it does not."""
    parts = evidence(rank([step(1.0)]), rank([step(5.0)]))
    found = diagnose.loss_weights(parts, 2.0, 1)
    assert found is not None
    assert found.code == "loss_weights"
    assert diagnose.loss_weights(parts, 6.0, 1) is None


# Experiments


def attempt(vanishing: tuple[str, ...]) -> experiments.Try:
    return lambda changed, in_both: Experiment(changes=changed, layout="ddp on 2", vanished=changed == vanishing)


def test_suspects_follow_what_was_seen() -> None:
    """Dropout where it was at work, BatchNorm where there is one, both together, seeds, and float64 last."""
    plain = reference()
    assert experiments.suspects(plain, [], TOLERANCE, ()) == [(changes.EQUAL_SEEDS,), (changes.FLOAT64,)]
    both = evidence(rank([step()], noticed=["dropout"], layers={"BatchNorm2d": 2}))
    assert experiments.suspects(both, [], TOLERANCE, (changes.EQUAL_SEEDS,)) == [
        (changes.NO_DROPOUT,), (changes.FROZEN_BATCHNORM,), (changes.NO_DROPOUT, changes.FROZEN_BATCHNORM),
        (changes.FLOAT64,)]
    scaled = Finding(code="learning_rate_scaled", seen="", cause="")
    assert experiments.suspects(both, [scaled], TOLERANCE, ()) == []


def test_the_change_that_makes_the_difference_vanish_is_the_cause() -> None:
    """Experiments end there, and the first step and tensor that differ are told."""
    wanted = [(changes.NO_DROPOUT,), (changes.FROZEN_BATCHNORM,), (changes.FLOAT64,)]
    found, done = experiments.explain([], wanted, attempt((changes.FROZEN_BATCHNORM,)), "ddp on 2", (3, "weight"), None)
    assert [finding.code for finding in found] == ["batchnorm"]
    assert (found[0].step, found[0].tensor) == (3, "weight")
    assert [each.vanished for each in done] == [False, True]


def test_where_no_change_helps_that_is_said() -> None:
    """With what was tried; or what may be the cause, where there is such."""
    found, _ = experiments.explain([], [(changes.FLOAT64,)], attempt(()), "ddp on 2", (1, None), None)
    assert found[0].code == "unexplained"
    assert "float64" in found[0].cause
    maybe = Finding(code="loss_weights", seen="so", cause="why")
    found, _ = experiments.explain([], [(changes.FLOAT64,)], attempt(()), "ddp on 2", (1, None), maybe)
    assert [(finding.code, finding.layout) for finding in found] == [("loss_weights", "ddp on 2")]


# The whole, over jobs that are made up


class Played:
    """Jobs whose evidence is given: by layout, and by change for the experiments."""

    def __init__(self, evidence: dict[object, Evidence]) -> None:
        self._evidence = evidence
        self.asked: list[tuple[str, tuple[str, ...]]] = []

    def run(self, layout: Layout, tell: object, *, changes: Sequence[str] = (), reference: Path | None = None,
            label: str = "") -> Evidence:
        self.asked.append((str(layout), tuple(changes)))
        return self._evidence.get((layout, *changes), self._evidence[layout])


TWO = Layout("ddp", 2)


def verified(other: Evidence, **more: Evidence) -> Result:
    return verify(Played({REFERENCE: reference(), TWO: other}), [TWO], lambda what, steps: None)


def test_a_verification_of_equal_layouts() -> None:
    """The reference three times (again, and rounded), then the layout; the same, with exit code 0."""
    jobs = Played({REFERENCE: reference(), TWO: halves()})
    result = verify(jobs, [TWO], lambda what, steps: None)
    assert (result.is_same, result.exit_code) == (True, 0)
    single = str(REFERENCE)
    assert jobs.asked == [(single, ()), (single, ()), (single, (changes.NUDGED,)), ("ddp on 2", ())]
    assert json.loads(json.dumps(as_values(result)))["verdict"] == "same"
    assert "Every step had 8 samples" in notes(result)[0]


def test_a_difference_that_vanishes_without_dropout() -> None:
    """It is the cause, and the exit code is 1."""
    seen = rank([step(rows=rows_of(number)) for number in range(1, 5)], noticed=["dropout"])
    jobs = Played({REFERENCE: evidence(seen), TWO: halves(loss=1.5), (TWO, changes.NO_DROPOUT): halves()})
    result = verify(jobs, [TWO], lambda what, steps: None)
    assert [finding.code for finding in findings_of(result)] == ["dropout"]
    assert result.exit_code == 1
    assert [each.vanished for each in result.experiments] == [True]


def test_a_reference_that_differs_from_itself() -> None:
    """Is told, and the layouts are compared with every seed set."""
    class Unseeded(Played):
        def run(self, layout: Layout, tell: object, *, changes: Sequence[str] = (), reference: Path | None = None,
                label: str = "") -> Evidence:
            found = super().run(layout, tell, changes=changes, reference=reference, label=label)
            return found if changes or len(self.asked) != 2 else halves(loss=3.0)

    result = verify(Unseeded({REFERENCE: reference(), TWO: halves()}), [TWO], lambda what, steps: None)
    assert [finding.code for finding in findings_of(result)] == ["unseeded"]
    assert all(verdict.is_same for verdict in result.verdicts)
    assert result.exit_code == 1


def test_json_has_no_number_that_is_none() -> None:
    """A loss that is NaN on one side only is an infinite difference, which JSON does not know."""
    result = verified(halves(loss=math.nan))
    assert result.exit_code == 1
    text = json.dumps(as_values(result), allow_nan=False)
    assert json.loads(text)["layouts"][0]["loss"] is None


def test_weights_that_never_move() -> None:
    """A training in which every layout looks the same, because nothing happens."""
    still = [State(parameters={"weight": "w"})] * 5
    frozen = rank([step(rows=rows_of(number)) for number in range(1, 5)], states=dict(enumerate(still)))
    result = verify(Played({REFERENCE: evidence(frozen), TWO: halves()}), [TWO], lambda what, steps: None)
    assert [finding.code for finding in findings_of(result)] == ["no_movement"]


def test_a_layout_that_does_not_run() -> None:
    """Has exit code 2, where nothing else differs."""
    broken = replace(evidence(rank([], how="vanished"), rank([], how="failed with ValueError")), failure="ValueError")
    result = verified(broken)
    assert result.exit_code == 2
    assert as_values(result)["verdict"] == "could not run"


def test_a_reference_that_does_not_run() -> None:
    """Raises, with what the training said."""
    broken = replace(evidence(rank([], how="failed with ValueError")), failure="ValueError: no data")
    with pytest.raises(CouldNotRunError, match="no data"):
        verify(Played({REFERENCE: broken}), [TWO], lambda what, steps: None)


def test_every_code_has_a_remedy() -> None:
    """A verdict tells what to change."""
    verdict = judged(TWO, reference(), halves(lr=0.2), TOLERANCE)
    assert REMEDIES[verdict.findings[0].code] == verdict.findings[0].remedy
    assert not verdict.is_same


# Layouts, and records on disk


def test_layouts() -> None:
    """Modes and worlds are combined; one device is the reference; plain scripts and exact mode have no dp."""
    both = [str(each) for each in layouts("1,2,4", "single,dp,ddp", exact=False, uses_rankwise=True)]
    assert both == ["dp on 2", "dp on 4", "ddp on 2", "ddp on 4"]
    assert [str(each) for each in layouts("2", "dp,ddp", exact=False, uses_rankwise=False)] == ["ddp on 2"]
    assert [str(each) for each in layouts("3", "dp,ddp", exact=True, uses_rankwise=True)] == ["ddp on 3"]


@pytest.mark.parametrize(("worlds", "modes"), [("two", "ddp"), ("0", "ddp"), ("2", "fsdp"), ("1", "ddp"), (",", "ddp"),
                                               ("2", "single")])
def test_layouts_that_cannot_be_used(worlds: str, modes: str) -> None:
    """Words that are no numbers or modes, and nothing to compare."""
    with pytest.raises(UsageError):
        layouts(worlds, modes, exact=False, uses_rankwise=True)


def test_a_record_that_was_cut_off(tmp_path: Path) -> None:
    """A killed rank's last line may be half a line; the rest counts."""
    entry = {"kind": "step", "step": 1, "optimizer": 0, "gradients": {}, "losses": [[1.0, 1.0]], "rows": {},
             "clips": [], "gradient_norm": 1.0, "plateaus": [], "lr": [0.1], "settings": [{"lr": 0.1}]}
    (tmp_path / "rank0.jsonl").write_text(json.dumps(entry) + "\n" + json.dumps(entry)[:30])
    found = read(tmp_path, "ddp on 2", 2)
    assert [len(each.steps) for each in found.ranks] == [1, 0]
    assert found.ranks[0].how == "vanished"
    assert not found.ended_well


def test_a_tolerance_below_rounding() -> None:
    """What only rounding parts is called so, without an experiment."""
    jobs = Played({REFERENCE: reference(), TWO: halves(loss=1 + 1e-7)})
    result = verify(jobs, [TWO], lambda what, steps: None, tolerance=0.0)
    assert [finding.code for finding in findings_of(result)] == ["rounding"]
    assert len(jobs.asked) == 3


def test_a_tensor_that_rounding_moves_is_allowed_to_move() -> None:
    """What the nudged reference shows for a tensor counts for that tensor alone."""
    sensitive = replace(TOLERANCE, tensors={"weight": 0.5})
    assert sensitive.of("weight", 4) == pytest.approx(8.0)
    assert sensitive.of("bias", 4) == TOLERANCE.at(4)
    assert replace(sensitive, fixed=0.0).of("weight", 4) == 0
    far = evidence(rank([step()]), weight=1.002)
    assert compare(evidence(rank([step()])), far, sensitive).is_same


def test_mixed_precision_is_seen() -> None:
    """The dtype of autocast, where a rank noticed it, coarsens the rounding."""
    low = evidence(rank([step()], noticed=["bfloat16"]))
    assert evidence(rank([step()])).epsilon == 2.0 ** -23
    assert low.epsilon == 2.0 ** -7 / 64


def test_the_gradient_norm_is_that_before_clipping() -> None:
    """Clipped gradients all have one norm, which would hide a difference."""
    clipped = evidence(rank([step(clips=[[7.0, 1.0]], gradient=1.0)]))
    assert clipped.gradient_norm(1) == 7.0


def test_a_mode_that_does_not_take_the_training_is_left_out() -> None:
    """Where the mode was not asked for, its refusal is a note, and the rest counts; asked for, it did not run."""
    dp = Layout("dp", 2)
    refusal = replace(evidence(rank([], how="failed with MisuseError", error="Not in mode dp.")), failure="Not so.")
    jobs = Played({REFERENCE: reference(), TWO: halves(), dp: refusal})
    result = verify(jobs, [dp, TWO], lambda what, steps: None, leave_out="dp")
    assert result.exit_code == 0
    assert notes(result)[0] == "dp on 2 was left out: Not in mode dp."
    assert verify(jobs, [dp, TWO], lambda what, steps: None).exit_code == 2
    assert verify(jobs, [dp], lambda what, steps: None, leave_out="dp").exit_code == 2


def test_rows_that_are_no_samples() -> None:
    """Other rows with the same numbers (sequences first) are a note, and the training is the same."""
    columns = split([["a", "b"]] * 4, [["c", "d"]] * 4, loss=1.0)
    result = verified(columns)
    assert result.exit_code == 0
    assert "rows are not samples here" in notes(result)[0]
