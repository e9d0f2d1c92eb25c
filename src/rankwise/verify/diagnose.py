"""What the records alone show of a layout that is another training than the reference."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rankwise.verify import ranks, samples
from rankwise.verify.compare import Comparison, relative
from rankwise.verify.evidence import Evidence
from rankwise.verify.findings import Finding
from rankwise.verify.tolerance import Tolerance


def findings(reference: Evidence, other: Evidence, comparison: Comparison, tolerance: Tolerance) -> list[Finding]:
    """What explains the difference, the likely cause of the others first; empty where the records do not tell."""
    found = ranks.findings(other)
    if other.steps:
        found += _learning_rate(reference, other, comparison)
        found += _settings(reference, other)
        found += _initial(reference, other)
        if comparison.samples == 1 or (comparison.samples and not {"unequal_steps", "stuck", "collectives"} & {
                finding.code for finding in found}):   # ranks that are not in the same step have other samples
            seen = samples.finding(reference, other, comparison.samples)
            found += [seen] * (seen.code == "samples_repeated" or not comparison.is_same)
        if comparison.first is not None and not found:
            found += _loss(reference, other, comparison.first, tolerance)
    return found


def _learning_rate(reference: Evidence, other: Evidence, comparison: Comparison) -> Iterator[Finding]:
    step = comparison.learning_rate
    if step is None or any(list(each.lr) != list(other.at(step)[0].lr) for each in other.at(step)):
        return
    expected, found = reference.at(step)[0].lr, other.at(step)[0].lr
    world = len(other.ranks)
    seen = f"In step {step} the learning rate was {_listed(found)}, the reference's {_listed(expected)}."
    ratios = {round(b / a, 9) for a, b in zip(expected, found, strict=False) if a}
    if world > 1 and len(ratios) == 1 and any(relative(factor, ratio) < 1e-6 for ratio in ratios
                                              for factor in (world, math.sqrt(world), 1 / world)):
        ratio, = ratios
        yield Finding(code="learning_rate_scaled", step=step, seen=seen,
                      cause=f"The learning rate is {ratio:.6g} times the reference's on {world} ranks.")
    else:
        yield Finding(code="learning_rate", step=step, seen=seen,
                      cause="The schedule depends on the number of ranks, or is called another number of times.")


def _settings(reference: Evidence, other: Evidence) -> Iterator[Finding]:
    ignored = ("lr", "initial_lr", "max_lr", "min_lr")
    for step in range(1, min(reference.steps, other.steps) + 1):
        ours, theirs = ([{name: value for name, value in group.items() if name not in ignored}
                         for group in evidence.at(step)[0].settings] for evidence in (reference, other))
        if ours != theirs:
            yield Finding(code="settings", step=step, cause="The optimizer is built with settings that depend on the "
                          "number of ranks.", seen=f"In step {step} {ranks.different(ours, theirs)}, the reference's "
                          "first.")
            return


def _initial(reference: Evidence, other: Evidence) -> Iterator[Finding]:
    for name, expected in reference.initial.items():
        found = other.initial.get(name)
        if found is None or found.shape != expected.shape or not bool((found == expected).all()):
            yield Finding(code="initial_weights", step=1, tensor=name,
                          seen=f"Before the first update `{name}` is not the reference's.",
                          cause="The weights are drawn from a seed that depends on the number of ranks, or is not set.")
            return


def _loss(reference: Evidence, other: Evidence, step: int, tolerance: Tolerance) -> Iterator[Finding]:
    """The same samples, and another loss or gradient: how the ranks' parts were put together."""
    parts = [each.loss for each in other.at(step)]
    rows = [each.samples.total() for each in other.at(step)]
    expected, allowed = reference.loss(step), tolerance.at(step)
    total = sum(rows)
    if len(parts) < 2 or not total:
        return
    weighed = math.fsum(loss * count for loss, count in zip(parts, rows, strict=True)) / total
    if relative(expected, other.loss(step)) > allowed and relative(expected, weighed) <= allowed:
        yield Finding(code="loss_not_weighted", step=step,
                      seen=f"In step {step} the ranks had {_counts(rows)} rows, and each rank's mean counted the same: "
                           f"{other.loss(step):.9g}. Weighed by rows it is {weighed:.9g}, the reference's "
                           f"{expected:.9g}.",
                      cause="A mean of means is not the mean where ranks have different numbers of rows.")
        return
    scale = other.gradient_norm(step) / reference.gradient_norm(step) if reference.gradient_norm(step) else 1.0
    for factor in (len(parts), 1 / len(parts)):
        if relative(factor, scale) <= max(allowed, 1e-6):
            yield Finding(code="gradient_scaled", step=step,
                          seen=f"In step {step} the gradient is {scale:.6g} times the reference's.",
                          cause="Gradients are summed over the ranks where their mean is meant, or the loss is divided "
                                "once too often.")
            return


def loss_weights(other: Evidence, expected: float, step: int) -> Finding | None:
    """Where nothing else explains another loss of the same samples: the losses may have denominators of their own."""
    local = [[loss for _, loss in each.losses] for each in other.at(step)]
    if len(local) < 2 or any(len(losses) != 1 for losses in local):
        return None
    losses = [losses[0] for losses in local]
    if not min(losses) < expected < max(losses):
        return None
    return Finding(code="loss_weights", step=step, seen=f"In step {step} the ranks' losses were "
                   f"{', '.join(f'{loss:.6g}' for loss in losses)}, together {other.loss(step):.6g}; the reference's "
                   f"{expected:.6g} lies between them.",
                   cause="No other cause was found, and a mean with other weights than the rows would give that: a "
                         "loss over tokens, masked targets or weighted classes.")


def _listed(rates: object) -> str:
    return ", ".join(f"{rate:g}" for rate in rates) if isinstance(rates, (list, tuple)) else str(rates)


def _counts(rows: list[int]) -> str:
    return ", ".join(map(str, rows[:-1])) + f" and {rows[-1]}"
