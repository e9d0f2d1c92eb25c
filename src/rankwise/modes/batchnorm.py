"""BatchNorm in several processes: over each rank's slice, or synchronised over the rows of all ranks.

Slices may be ragged or empty. Statistics of ranks are merged by Chan, Golub and LeVeque's rule for pairwise variances
(Updating Formulae and a Pairwise Algorithm for Computing Sample Variances, 1979), which does not cancel where a mean is
large beside its deviation.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from rankwise.errors import MisuseError
from rankwise.group import Group
from rankwise.modes.inplace import InPlace, put_in_front
from rankwise.modes.norows import StandIn


def spread_batchnorm(module: nn.Module, group: Group, stand_in: StandIn, *, synchronised: bool) -> None:
    """Fit each BatchNorm in `module` for slices, in place; `nn.SyncBatchNorm` is synchronised in any case.

    Raises MisuseError where one is to be synchronised whose class has a forward of its own.
    """
    for name, layer in module.named_modules():
        if not isinstance(layer, _BatchNorm) or isinstance(layer, (SliceBatchNorm, SynchronisedBatchNorm)):
            continue
        wanted = synchronised or isinstance(layer, nn.SyncBatchNorm)
        standard = type(layer).forward in (_BatchNorm.forward, nn.SyncBatchNorm.forward)
        if wanted and not standard:
            raise MisuseError(f"sync_batchnorm is given, and `{name}` is a {type(layer).__name__}.",
                              "A class with a forward of its own cannot be synchronised from outside.",
                              "Use nn.BatchNorm1d, 2d or 3d there, or leave sync_batchnorm out.")
        if wanted:
            put_in_front(SynchronisedBatchNorm, layer, _group=group, _stand_in=stand_in)
        elif standard:
            put_in_front(SliceBatchNorm, layer, _stand_in=stand_in)


class SliceBatchNorm(InPlace):
    """BatchNorm over a rank's slice, which may be too small to have a variance.

    Fewer than two values a channel are normalised by the running statistics, and leave them as they are.
    """

    _stand_in: StandIn
    running_mean: torch.Tensor | None
    running_var: torch.Tensor | None
    num_batches_tracked: torch.Tensor | None
    weight: torch.Tensor | None
    bias: torch.Tensor | None
    eps: float

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        values = input.shape[0] * math.prod(input.shape[2:])
        known, is_stand_in = self._stand_in.results, self._stand_in.is_computed
        if not self.training or (values > 1 and not is_stand_in):
            return super().forward(input)  # type: ignore[no-any-return]
        if is_stand_in and known:
            known.pop(0)
        elif self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)   # counts batches, and is the same on every rank
        mean, variance = self.running_mean, self.running_var
        if mean is None or variance is None:
            mean, variance = _constant_statistics(input)
        result = F.batch_norm(input, mean, variance, self.weight, self.bias, False, 0.0, self.eps)
        if len(input) == 0:
            known.append(result)
        return result


class SynchronisedBatchNorm(InPlace):
    """BatchNorm over the rows of all ranks: one collective forward and one backward.

    In training every rank must call it equally often. A channel that has one value in all gets variance 0.
    """

    _group: Group
    _stand_in: StandIn
    _check_input_dim: Any
    running_mean: torch.Tensor | None
    running_var: torch.Tensor | None
    num_batches_tracked: torch.Tensor | None
    weight: torch.Tensor | None
    bias: torch.Tensor | None
    momentum: float | None
    eps: float

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return super().forward(input)  # type: ignore[no-any-return]
        self._check_input_dim(input)
        known = self._stand_in.results
        if self._stand_in.is_computed:   # it goes by unchanged, behind the zero rows that are this rank's
            return torch.cat([known.pop(0) if known else self._normalised(input[:0]), input])
        result = self._normalised(input)
        if len(input) == 0:
            known.append(result)
        return result

    def _normalised(self, input: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            statistics = _statistics_of_all(input.detach(), self._group)
            self._track(statistics)
            mean, scale = statistics.mean, torch.rsqrt(statistics.squares / statistics.values + self.eps)
        result: torch.Tensor = _Normalise.apply(  # type: ignore[no-untyped-call]
            input, self.weight, self.bias, mean, scale, statistics.values, self._group)
        return result

    def _track(self, statistics: Statistics) -> None:
        if self.running_mean is None or self.running_var is None:
            return
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        share: Any = self.momentum
        if share is None:   # the mean over all batches so far
            assert self.num_batches_tracked is not None
            share = 1.0 / self.num_batches_tracked.to(self.running_mean.dtype)
        unbiased = statistics.squares / (statistics.values - 1).clamp(min=1)
        self.running_mean.lerp_(statistics.mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), share)


class Statistics(NamedTuple):
    """Number of values (0-dim), mean and sum of squared deviations of each channel ([channels])."""

    values: torch.Tensor
    mean: torch.Tensor
    squares: torch.Tensor


def _statistics_of_all(values: torch.Tensor, group: Group) -> Statistics:
    """Statistics of `values` [rows, channels, ...] over the rows of all ranks; no rank's rows may be told apart."""
    values = values.to(_accurate(values.dtype))
    count = values.shape[0] * math.prod(values.shape[2:])
    mean = values.sum(_all_but_channels(values)) / max(count, 1)
    squares = (values - _per_channel(mean, values)).square().sum(_all_but_channels(values))
    table = values.new_zeros(group.size, 1 + 2 * len(mean))   # a row for each rank: adding zeros is exact
    table[group.rank] = torch.cat([mean.new_full((1,), count), mean, squares])
    counts, means, parts = torch.split(group.sum(table), [1, len(mean), len(mean)], dim=1)
    total = counts.sum()
    overall = (counts * means).sum(0) / total
    return Statistics(total, overall, (parts + counts * (means - overall).square()).sum(0))


class _Normalise(torch.autograd.Function):
    """(input - mean) * scale * weight + bias, whose gradient knows that mean and scale come from all ranks' inputs."""

    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None,
                mean: torch.Tensor, scale: torch.Tensor, count: torch.Tensor, group: Group) -> torch.Tensor:
        ctx.save_for_backward(input, weight, mean, scale, count)
        ctx.group = group
        result = (input - _per_channel(mean, input)) * _per_channel(scale, input)
        if weight is not None and bias is not None:
            result = result * _per_channel(weight, input) + _per_channel(bias, input)
        return result.to(input.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        input, weight, mean, scale, count = ctx.saved_tensors
        gradient = gradients[0].to(mean.dtype)
        centred = (input - _per_channel(mean, input)) * _per_channel(scale, input)
        dims = _all_but_channels(input)
        by_bias, by_weight = gradient.sum(dims), (gradient * centred).sum(dims)
        by_input = None
        if ctx.needs_input_grad[0]:
            means = ctx.group.sum(torch.stack([by_bias, by_weight])) / count
            slope = scale if weight is None else scale * weight
            by_input = gradient - _per_channel(means[0], input) - centred * _per_channel(means[1], input)
            by_input = (by_input * _per_channel(slope, input)).to(input.dtype)
        if weight is None:
            return by_input, None, None, None, None, None, None
        return by_input, by_weight.to(weight.dtype), by_bias.to(weight.dtype), None, None, None, None


def _constant_statistics(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    mean = torch.zeros(values.shape[1], dtype=_accurate(values.dtype), device=values.device)
    return mean, torch.ones_like(mean)


def _accurate(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _all_but_channels(values: torch.Tensor) -> list[int]:
    return [0, *range(2, values.ndim)]


def _per_channel(vector: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return vector.view(1, -1, *[1] * (values.ndim - 2))
