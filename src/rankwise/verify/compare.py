"""The numbers of one layout against those of the reference: how far they part, in which step and in which tensor."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from rankwise.verify.evidence import Evidence
from rankwise.verify.tolerance import Tolerance

_SMALL = 1e-2   # of the largest so far: a loss or gradient that has become small is not held to its own size


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A number of each step: its relative difference there, and the first step where that is more than allowed."""

    differences: Sequence[float] = ()
    first: int | None = None

    @property
    def largest(self) -> float:
        return max(self.differences, default=0.0)


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """A parameter's or buffer's largest difference at the end."""

    name: str
    largest: float      # absolute
    relative: float     # to the largest number in the reference's tensor
    roundings: float    # relative, in units of the dtype's rounding
    is_allowed: bool


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A layout beside the reference."""

    steps: int
    loss: Curve = field(default_factory=Curve)
    gradient_norm: Curve = field(default_factory=Curve)
    samples: int | None = None       # the first step whose samples differ
    learning_rate: int | None = None # the first step whose learning rates differ
    first_gradient: str | None = None  # the tensor whose gradient differs first, in the first step where one does
    parameters: Sequence[Tensor] = ()
    buffers: Sequence[Tensor] = ()

    @property
    def first(self) -> int | None:
        """The first step in which a number differs by more than is allowed."""
        return min((step for step in (self.loss.first, self.gradient_norm.first) if step is not None), default=None)

    @property
    def is_same(self) -> bool:
        """Whether all numbers are; samples that differ then are other rows of the same data."""
        return self.first is None and self.learning_rate is None and all(
            tensor.is_allowed for tensor in (*self.parameters, *self.buffers))

    def worst(self, tensors: Sequence[Tensor]) -> Tensor | None:
        return max(tensors, key=lambda tensor: tensor.relative, default=None)


def compare(reference: Evidence, other: Evidence, tolerance: Tolerance) -> Comparison:
    """All that can be compared of the steps that both made."""
    steps = min(reference.steps, other.steps)
    loss = _curve(reference.loss, other.loss, steps, tolerance)
    if tolerance.fixed == 0 and reference.logged:   # for the others are added up in the order of ranks
        logged = min(steps, len(reference.logged), len(other.logged))
        loss = _curve(lambda step: reference.logged[step - 1], lambda step: other.logged[step - 1], logged, tolerance)
    gradient = _curve(reference.gradient_norm, other.gradient_norm, steps, tolerance)
    firsts = [curve.first for curve in (loss, gradient) if curve.first is not None]
    complete = reference.steps == other.steps
    pairs = _pairs(reference, other, tolerance, steps) if complete else []
    return Comparison(
        steps=steps, loss=loss, gradient_norm=gradient,
        samples=_first(steps, lambda step: reference.samples(step) != other.samples(step)),
        learning_rate=_first(steps, lambda step: not _equal_rates(reference, other, step)),
        first_gradient=_first_gradient(reference, other, min(firsts), tolerance) if firsts else None,
        parameters=[each for each in pairs if each.name not in reference.buffer_names],
        buffers=[each for each in pairs if each.name in reference.buffer_names])


def _first(steps: int, differs: Callable[[int], bool]) -> int | None:
    return next((step for step in range(1, steps + 1) if differs(step)), None)


def _curve(reference: Callable[[int], float], other: Callable[[int], float], steps: int,
           tolerance: Tolerance) -> Curve:
    differences, largest, first = [], 0.0, None
    for step in range(1, steps + 1):
        expected, found = reference(step), other(step)
        largest = max(largest, abs(expected)) if math.isfinite(expected) else largest
        differences.append(relative(expected, found, _SMALL * largest))
        if first is None and not differences[-1] <= tolerance.at(step):
            first = step
    return Curve(differences=differences, first=first)


def relative(expected: float, found: float, least: float = 0.0) -> float:
    """|found - expected| / max(|expected|, least); 0 where both are the same kind of no number."""
    if expected == found or (math.isnan(expected) and math.isnan(found)):
        return 0.0
    if not (math.isfinite(expected) and math.isfinite(found)):
        return math.inf
    return abs(found - expected) / max(abs(expected), least, 1e-300)


def _equal_rates(reference: Evidence, other: Evidence, step: int) -> bool:
    expected = reference.at(step)[0].lr
    return all(len(each.lr) == len(expected) and all(
        relative(a, b) < 1e-12 for a, b in zip(expected, each.lr, strict=True)) for each in other.at(step))


def _first_gradient(reference: Evidence, other: Evidence, step: int, tolerance: Tolerance) -> str | None:
    """The first tensor, in the optimizer's order, whose gradient's norm differs too much; else the worst."""
    ours, theirs = reference.at(step)[0].gradients, other.at(step)[0].gradients
    least = _SMALL * reference.gradient_norm(step)
    found = {name: relative(ours[name][0], theirs[name][0], least) if name in theirs else math.inf for name in ours}
    beyond = [name for name, difference in found.items() if difference > tolerance.at(step)]
    return beyond[0] if beyond else max(found, key=lambda name: found[name], default=None)


def _pairs(reference: Evidence, other: Evidence, tolerance: Tolerance, steps: int) -> list[Tensor]:
    return [_tensor(name, expected, other.final[name], tolerance.of(name, max(steps, 1)), reference.epsilon)
            for name, expected in reference.final.items() if name in other.final]


def _tensor(name: str, expected: torch.Tensor, found: torch.Tensor, allowed: float, epsilon: float) -> Tensor:
    if expected.shape != found.shape or not expected.numel():
        same = expected.shape == found.shape
        return Tensor(name=name, largest=0.0 if same else math.inf, relative=0.0 if same else math.inf,
                      roundings=0.0 if same else math.inf, is_allowed=same)
    if expected.is_floating_point():
        epsilon = torch.finfo(expected.dtype).eps
    largest = float((expected.double() - found.double()).abs().nan_to_num(nan=math.inf).max())
    if bool((expected.isnan() & found.isnan()).any()):
        largest = 0.0 if torch.equal(expected.nan_to_num(), found.nan_to_num()) else largest
    size = float(expected.double().abs().nan_to_num().max())
    part = relative(size, size + largest) if largest else 0.0
    is_allowed = part <= allowed if allowed else _have_same_bits(expected, found)
    return Tensor(name=name, largest=largest, relative=part, roundings=part / epsilon, is_allowed=is_allowed)


def _have_same_bits(first: torch.Tensor, other: torch.Tensor) -> bool:
    """Zeros have a sign, and there are many NaN."""
    return first.dtype == other.dtype and torch.equal(first.reshape(-1).view(torch.uint8),
                                                      other.reshape(-1).view(torch.uint8))
