"""One verification from start to end: the reference, its noise, each layout, and the causes of what differs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from rankwise.errors import RankwiseError
from rankwise.verify import diagnose, experiments, ranks
from rankwise.verify.compare import Comparison, compare
from rankwise.verify.evidence import Evidence
from rankwise.verify.experiments import Experiment
from rankwise.verify.findings import Finding
from rankwise.verify.layouts import REFERENCE, Layout
from rankwise.verify.tolerance import Tolerance
from rankwise.witness import changes


class Runs(Protocol):
    """What starts a job and reads its evidence: `rankwise.verify.jobs.Jobs`."""

    def run(self, layout: Layout, tell: Callable[[int], None], *, changes: Sequence[str] = (),
            reference: Path | None = None, label: str = "") -> Evidence: ...


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A layout, and what became of it."""

    layout: Layout
    evidence: Evidence
    comparison: Comparison
    findings: Sequence[Finding] = ()

    @property
    def is_same(self) -> bool:
        return not self.findings and self.comparison.is_same and self.evidence.ended_well

    @property
    def ran(self) -> bool:
        return not any(finding.code == "could_not_run" for finding in self.findings)

    @property
    def is_refused(self) -> bool:
        """Whether rankwise does not take this training in this mode, and says so before the first step."""
        return not self.ran and not self.evidence.steps and all(
            rank.how == "failed with MisuseError" for rank in self.evidence.ranks)


@dataclass(frozen=True, kw_only=True)
class Result:
    """All that a verification found."""

    reference: Evidence
    tolerance: Tolerance
    rerun: Comparison                      # the reference against itself: the noise of this machine
    nudged: Comparison | None              # against itself from weights moved by one rounding
    verdicts: Sequence[Verdict] = ()
    refused: Sequence[Verdict] = ()        # left out, for the mode does not take this training
    findings: Sequence[Finding] = ()       # of the reference alone
    experiments: Sequence[Experiment] = field(default_factory=tuple)

    @property
    def is_same(self) -> bool:
        return bool(self.verdicts) and not self.findings and all(verdict.is_same for verdict in self.verdicts)

    @property
    def exit_code(self) -> int:
        """0 the same training, 1 another one, 2 where a layout did not run and the others are the same."""
        if self.is_same:
            return 0
        differs = self.findings or any(not verdict.is_same and verdict.ran for verdict in self.verdicts)
        return 1 if differs else 2


class CouldNotRunError(RankwiseError):
    """The reference did not run, so there is nothing to compare with."""

    exit_code = 2


def verify(jobs: Runs, layouts: Sequence[Layout], tell: Callable[[str, int], None], *,
           tolerance: float | None = None, explain: bool = True, leave_out: str | None = None) -> Result:
    """Run and compare. `tell` is given what runs now and its steps so far; `leave_out` is a mode that may be refused.

    Raises CouldNotRunError where the reference makes no step, and what `jobs` raises.
    """
    reference = jobs.run(REFERENCE, _telling(tell, "the reference"), label="reference")
    _require_steps(reference)
    found = _reference_findings(reference)
    base: tuple[str, ...] = ()
    rerun = jobs.run(REFERENCE, _telling(tell, "the reference again"), label="rerun")
    bare = Tolerance(epsilon=reference.epsilon, rows=reference.samples(1).total(), fixed=tolerance)
    noise = compare(reference, rerun, bare)
    if not noise.is_same or noise.samples is not None:
        found.append(_unseeded(noise))
        base = (changes.EQUAL_SEEDS,)   # so that more can be seen
        reference = jobs.run(REFERENCE, _telling(tell, "the reference, seeded"), changes=base, label="reference")
    nudged = None
    if tolerance is None:
        moved = jobs.run(REFERENCE, _telling(tell, "the reference, rounded"), changes=(*base, changes.NUDGED))
        nudged = compare(reference, moved, bare)
        if nudged.samples is None and moved.ended_well:   # else something is not seeded even so
            bare = replace(bare, measured=_measured(nudged), tensors={
                tensor.name: tensor.relative for tensor in (*nudged.parameters, *nudged.buffers)})
    verdicts = [_verdict(jobs, layout, reference, bare, base, tell) for layout in layouts]
    refused = [each for each in verdicts if each.layout.mode == leave_out and each.is_refused]
    result = Result(reference=reference, tolerance=bare, rerun=noise, nudged=nudged, findings=found, refused=refused,
                    verdicts=[each for each in verdicts if not any(each is left for left in refused)])
    return _explained(jobs, result, base, tell) if explain else result


def _telling(tell: Callable[[str, int], None], what: str) -> Callable[[int], None]:
    return lambda steps: tell(what, steps)


def _require_steps(reference: Evidence) -> None:
    if not reference.steps or not reference.ended_well:
        how = reference.ranks[0] if reference.ranks else None
        said = reference.failure or (f"It {how.how} {how.where}".strip() + "." if how else "")
        if how and how.how == "returned" and not reference.steps:
            said = "It ended without a call of optimizer.step()."
        raise CouldNotRunError("The training does not run on one device, and that is the reference.",
                          said.replace("\n", "\n  "), "Run it by itself first: rankwise run TARGET --devices 1")


def _reference_findings(reference: Evidence) -> list[Finding]:
    found = ranks.findings(reference)
    last = reference.ranks[0].states.get(reference.steps)
    if last is not None and last.parameters == reference.ranks[0].states[0].parameters:
        found.append(Finding(code="no_movement", layout="reference", step=reference.steps,
                             seen=f"After {reference.steps} steps every weight is what it was.",
                             cause="No step changed anything, so that every layout would look the same."))
    return found


def _unseeded(noise: Comparison) -> Finding:
    what = "its samples" if noise.samples is not None else "its numbers"
    step = noise.samples or noise.first or noise.steps
    return Finding(code="unseeded", layout="reference", step=step,
                   seen=f"The reference, run twice, differed from itself: {what}, from step {step} on.",
                   cause="Something is drawn from a generator that nobody seeds.")


def _measured(nudged: Comparison) -> list[float]:
    """The largest difference up to each step that rounding the weights once has made."""
    pairs = zip(nudged.loss.differences, nudged.gradient_norm.differences, strict=True)
    return list(itertools.accumulate((max(pair) for pair in pairs), max))


def _verdict(jobs: Runs, layout: Layout, reference: Evidence, tolerance: Tolerance, base: Sequence[str],
             tell: Callable[[str, int], None]) -> Verdict:
    evidence = jobs.run(layout, _telling(tell, str(layout)), changes=base)
    return judged(layout, reference, evidence, tolerance)


def judged(layout: Layout, reference: Evidence, evidence: Evidence, tolerance: Tolerance) -> Verdict:
    """What the records of one layout tell."""
    comparison = compare(reference, evidence, tolerance)
    found = [replace(each, layout=str(layout)) for each in
             diagnose.findings(reference, evidence, comparison, tolerance)]
    return Verdict(layout=layout, evidence=evidence, comparison=comparison, findings=found)


def _explained(jobs: Runs, result: Result, base: tuple[str, ...], tell: Callable[[str, int], None]) -> Result:
    """The result, with what experiments show of the smallest layout that differs in each way."""
    verdicts, done, known = [], [], {}
    for verdict in result.verdicts:
        kind = frozenset(finding.code for finding in verdict.findings)
        if verdict.is_same:
            verdicts.append(verdict)
            continue
        if kind not in known:
            known[kind], new = _experiments(jobs, result, verdict, base, tell)
            done += new
        verdicts.append(replace(verdict, findings=[replace(finding, layout=str(verdict.layout))
                                                   for finding in known[kind]]))
    return replace(result, verdicts=verdicts, experiments=done)


def _experiments(jobs: Runs, result: Result, verdict: Verdict, base: tuple[str, ...],
                 tell: Callable[[str, int], None]) -> tuple[list[Finding], list[Experiment]]:
    layout, comparison = verdict.layout, verdict.comparison
    if result.tolerance.fixed is not None and judged(layout, result.reference, verdict.evidence,
                                                     replace(result.tolerance, fixed=None)).is_same:
        return [experiments.within_rounding(str(layout), (comparison.first, comparison.first_gradient))], []

    def attempt(changed: tuple[str, ...], in_both: bool) -> Experiment:
        every, what = (*base, *changed), f"{layout}, {' and '.join(experiments.NAMES[each] for each in changed)}"
        reference = result.reference
        if in_both:
            reference = jobs.run(REFERENCE, _telling(tell, f"the reference beside {what}"), changes=every)
        other = jobs.run(layout, _telling(tell, what), changes=every, reference=result.reference.folder)
        tolerance = result.tolerance
        if changes.FLOAT64 in changed:
            tolerance = replace(tolerance, epsilon=reference.epsilon, measured=(), tensors={})
        again = judged(layout, reference, other, tolerance)
        return Experiment(changes=changed, layout=str(layout), vanished=again.is_same and reference.ended_well,
                          left=again.findings)

    wanted = experiments.suspects(result.reference, verdict.findings, result.tolerance, base)
    step = comparison.first
    otherwise = (diagnose.loss_weights(verdict.evidence, result.reference.loss(step), step)
                 if step and comparison.samples is None else None)
    return experiments.explain(verdict.findings, wanted, attempt, str(layout), (step, comparison.first_gradient),
                               otherwise)
