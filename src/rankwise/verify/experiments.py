"""Causes by experiment: the reference and a layout once more, with one suspect changed in both."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rankwise.verify.evidence import Evidence
from rankwise.verify.findings import Finding
from rankwise.verify.tolerance import Tolerance
from rankwise.witness import changes

NAMES = {
    changes.NO_DROPOUT: "dropout off",
    changes.FROZEN_BATCHNORM: "BatchNorm frozen",
    changes.EQUAL_SEEDS: "every seed the same",
    changes.EQUAL_WEIGHTS: "the reference's initial weights",
    changes.SEEDED_SAMPLES: "randomness seeded by sample",
    changes.REFERENCE_ORDER: "the reference's batches, cut over the ranks",
    changes.FLOAT64: "float64",
}
_ONLY_IN_THE_LAYOUT = (changes.EQUAL_WEIGHTS, changes.REFERENCE_ORDER)   # the reference has them already
_OF_SAMPLES = ("batch_size_scaled", "samples_repeated", "samples_overlap", "samples_padded", "samples_dropped",
               "samples_changed", "samples_order")
_CODES = {changes.NO_DROPOUT: "dropout", changes.FROZEN_BATCHNORM: "batchnorm", changes.EQUAL_SEEDS: "seeds",
          changes.FLOAT64: "rounding"}


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """What was changed, and whether the difference vanished with it."""

    changes: tuple[str, ...]
    layout: str
    vanished: bool
    left: Sequence[Finding] = ()   # what the records show with the change

    @property
    def name(self) -> str:
        return " and ".join(NAMES[change] for change in self.changes)


Try = Callable[[tuple[str, ...], bool], Experiment]
"""Runs an experiment: the changes, and whether the reference is run with them too."""


def suspects(reference: Evidence, found: Sequence[Finding], tolerance: Tolerance,
             base: Sequence[str]) -> list[tuple[str, ...]]:
    """What to change, one after the other, until the difference vanishes."""
    codes = {finding.code for finding in found}
    by_index = all(rank.reads_indices for rank in reference.ranks)   # else the order cannot be set from outside
    if codes & {"unequal_steps", "stuck", "collectives", "could_not_run", "not_reduced", "not_reduced_partly"}:
        chosen = []
    elif codes & {"samples_overlap", "samples_changed", "samples_order"}:
        chosen = [changes.EQUAL_SEEDS, *[changes.SEEDED_SAMPLES, changes.REFERENCE_ORDER] * by_index]
    elif codes & set(_OF_SAMPLES):
        chosen = [changes.REFERENCE_ORDER] * by_index
    elif codes & {"initial_weights", "weights_differ_at_start"}:
        chosen = [changes.EQUAL_WEIGHTS]
    elif not codes or codes <= {"buffers_part", "loss_weights"}:
        chosen = _of_layers(reference)
        chosen += [changes.EQUAL_SEEDS] * (not codes)
        pairs = [tuple(chosen[:2])] if len(_of_layers(reference)) == 2 else []
        numbers = [(changes.FLOAT64,)] if not codes and tolerance.fixed is None and reference.epsilon > 1e-12 else []
        return [*((each,) for each in chosen if each not in base), *pairs, *numbers]
    else:
        chosen = []
    return [(each,) for each in chosen if each not in base]


def _of_layers(reference: Evidence) -> list[str]:
    layers = {name for rank in reference.ranks for name in rank.layers}
    found = [changes.NO_DROPOUT] if any("dropout" in rank.noticed for rank in reference.ranks) else []
    return found + [changes.FROZEN_BATCHNORM] * any("BatchNorm" in name for name in layers)


def explain(found: Sequence[Finding], wanted: Sequence[tuple[str, ...]], attempt: Try, layout: str,
            first: tuple[int | None, str | None],
            otherwise: Finding | None) -> tuple[list[Finding], list[Experiment]]:
    """The findings of a layout, with what the experiments add.

    `first` is the first step and tensor that differ, `otherwise` what may be the cause where no experiment shows one.
    """
    done: list[Experiment] = []
    for each in wanted:
        done.append(attempt(each, not set(each) & set(_ONLY_IN_THE_LAYOUT)))
        if done[-1].vanished:
            break
    cause = next((each for each in done if each.vanished), None)
    if cause is not None and (not found or "batchnorm" in _codes_of(cause)):
        return [_by(cause, layout, first, found)], done
    if cause is not None and cause.changes == (changes.SEEDED_SAMPLES,):
        return [replace(found[0], code="augmentation", cause="Augmentation or noise is drawn by rank or by worker. "
                        f"By experiment: with {cause.name} the difference vanishes.")], done
    if cause is not None:
        return [replace(found[0], cause=f"{found[0].cause} By experiment: with {cause.name} the difference vanishes."),
                *found[1:]], done
    if not found and otherwise is not None:
        return [replace(otherwise, layout=layout)], done
    if not found:
        tried = ", ".join(each.name for each in done) or "nothing could be changed from outside"
        return [Finding(code="unexplained", layout=layout, step=first[0], tensor=first[1], seen=_seen(first),
                        cause=f"Not found. The difference is still there with: {tried}.")], done
    return [*found, *_beneath(found, done)], done


def within_rounding(layout: str, first: tuple[int | None, str | None]) -> Finding:
    """Where only the tolerance that was asked for is exceeded."""
    return Finding(code="rounding", layout=layout, step=first[0], tensor=first[1], seen=_seen(first),
                   cause="The difference is what rounding can do, and more than the tolerance that was asked for.")


def _codes_of(experiment: Experiment) -> list[str]:
    return [_CODES[change] for change in experiment.changes if change in _CODES]


def _by(experiment: Experiment, layout: str, first: tuple[int | None, str | None],
        found: Sequence[Finding]) -> Finding:
    code = _codes_of(experiment)[-1]
    seen = " ".join([_seen(first), *(finding.seen for finding in found)])
    return Finding(code=code, layout=layout, step=first[0], tensor=first[1], seen=seen,
                   cause=f"By experiment: with {experiment.name} the difference vanishes.")


def _seen(first: tuple[int | None, str | None]) -> str:
    step, tensor = first
    where = f", first in the gradient of `{tensor}`" if tensor else ""
    return f"The runs part in step {step}{where}." if step else "The weights differ at the end."


def _beneath(found: Sequence[Finding], done: Sequence[Experiment]) -> list[Finding]:
    """What else is there, once the samples are the reference's."""
    known = {finding.code for finding in found}
    replayed = [each for each in done if each.changes == (changes.REFERENCE_ORDER,)]
    left = itertools.chain.from_iterable(each.left for each in replayed)
    return [replace(finding, seen=f"With {NAMES[changes.REFERENCE_ORDER]}: {finding.seen}") for finding in left
            if finding.code not in known and finding.code not in (*_OF_SAMPLES, "could_not_run", "unequal_steps")]
