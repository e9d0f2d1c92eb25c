"""Exact mode: the same bits on every number of ranks, for what is computed and added up does not depend on it.

A global batch is cut into virtual shards, the same on any number of ranks; a rank computes some of them, one after the
other, and their gradients are summed so that neither order nor grouping matters. EasyScale (Li et al., SC '23) and
VirtualFlow (Or, Zhang and Freedman, MLSys '22) separate the training from its devices in this way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from rankwise.errors import MisuseError, UsageError
from rankwise.group import Group
from rankwise.microbatch import MicroBatch
from rankwise.modes.agreement import equalise, require_same_module
from rankwise.modes.arrivals import Arrivals
from rankwise.modes.batchnorm import spread_batchnorm
from rankwise.modes.inplace import put_in_front
from rankwise.modes.known import KnownParameters
from rankwise.modes.norows import StandIn, TakesNoRows
from rankwise.modes.options import PrepareOptions
from rankwise.modes.sameness import Determinism, differences, facts, require_same
from rankwise.modes.shardbuffers import ShardBuffers
from rankwise.modes.single import Single
from rankwise.orderfree.fixedpoint import MOST_TERMS
from rankwise.orderfree.pipeline import Pipeline

_MOST_NAMED = 3


class Exact(Single):
    """Every rank holds a replica of each module, and computes its shards one by one."""

    def __init__(self, *, group: Group, shards: int, name: str, amp: str = "no") -> None:
        super().__init__(group=group, amp=amp)
        self.name = name
        self.averaged_over = 1
        if group.device.type == "mps":
            raise UsageError(f"--exact is {shards} on a device of kind mps.", "Its sums need float64, which mps lacks.",
                             "Give --accelerator cpu, or leave --exact out.")
        if shards > MOST_TERMS:
            raise UsageError(f"--exact is {shards}.", f"Sums have at most {MOST_TERMS} terms.",
                             "Give a multiple of the largest number of devices, such as 8 or 64.")
        require_same(group)
        self._shards = shards
        self._determinism = Determinism()
        self._known = KnownParameters("Exact mode sums the gradients of prepared modules alone.")
        self._parameters: dict[nn.Parameter, str] = {}
        self._order: list[nn.Parameter] = []
        self._buffers: list[ShardBuffers] = []
        self._stand_in = StandIn()
        self._pipeline: Pipeline | None = None
        self._arrivals: Arrivals | None = None
        self._share: MicroBatch | None = None
        self._is_complete = True
        self._told = False

    def _replicate(self, module: nn.Module, options: PrepareOptions) -> None:
        if options.sync_batchnorm or any(isinstance(layer, nn.SyncBatchNorm) for layer in module.modules()):
            raise MisuseError("A synchronised BatchNorm was prepared in exact mode.",
                              "Exact mode computes the shards of a batch one by one, so BatchNorm takes each shard's "
                              "own statistics.", "Leave sync_batchnorm out, or leave --exact out.")
        require_same_module(module, self._group)
        equalise(module, self._group)
        if not isinstance(module, AveragedModel):   # that follows the weights
            spread_batchnorm(module, self._group, self._stand_in, synchronised=False)
            self._buffers.append(ShardBuffers(module))
            for name, parameter in module.named_parameters():
                self._parameters.setdefault(parameter, name)
            self._known.update(self._parameters)
            self._lay_out_anew()
        put_in_front(TakesNoRows, module, _stand_in=self._stand_in)

    def require_known_parameters(self, optimizers: list[torch.optim.Optimizer]) -> None:
        self._known.require(optimizers)

    # A step

    def expect(self, micro_batch: MicroBatch) -> None:
        super().expect(micro_batch)
        for buffers in self._buffers:
            if micro_batch.is_first:
                buffers.begin_step()
            else:
                buffers.restore()
        if micro_batch.is_first and self._pipeline is not None:
            self._pipeline.clear()   # of a step that was broken off
        self._share, self._is_complete = micro_batch, False

    def reducing(self, loss: torch.Tensor, micro_batch: MicroBatch, amount: torch.Tensor | None = None, *,
                 update_follows: bool = False) -> AbstractContextManager[None]:
        if self._share is None or (micro_batch.rows > 0 and micro_batch.shard is None):
            raise MisuseError("A loss was given in exact mode whose rows come from no loader of this run.",
                              "Exact mode must know which virtual shard they are.", "Take the batches from run.loader.")
        if self._is_complete:
            raise MisuseError("A backward pass came after an update in one loop body, in exact mode.",
                              "The number of ranks decides which shards of the step would see the new weights.",
                              "Call run.backward for each loss first, then run.update([first, second]) once.")
        if update_follows and micro_batch.is_last and micro_batch.rows > 0 and self._group.size > 1:
            self._lay_out()
            assert self._arrivals is not None
            self._arrivals.begin()
        return super().reducing(loss, micro_batch, amount)

    def complete(self, *, is_last: bool) -> list[str]:
        """Put this shard's gradients away; with the last, put the sums in their place."""
        if self._is_complete or self._share is None:
            return []
        self._is_complete = True
        pipeline = self._lay_out()
        with torch.no_grad():
            tensors = self._of_shard(self._share)
            if is_last:
                with self._group.ledger.communicating():   # and the adding up of what the ranks have sent
                    return self._take(*pipeline.total(tensors))
            pipeline.add(tensors)
            return []

    def _of_shard(self, share: MicroBatch) -> list[torch.Tensor | None]:
        """What this shard adds to the sums: gradients, and changes of running statistics."""
        if self._arrivals is not None:
            self._arrivals.end()
        gradients = self._taken(range(len(self._parameters)))
        statistics = [each for buffers in self._buffers for each in buffers.changes(share.rows / share.global_rows)]
        if share.rows == 0:
            return [None] * (len(gradients) + len(statistics))
        if share.shard == 0:
            for buffers in self._buffers:
                buffers.keep_others()
        return [*gradients, *statistics]

    def _taken(self, indices: Sequence[int]) -> list[torch.Tensor | None]:
        """The gradients of these parameters, which have none from here on."""
        taken = []
        for index in indices:
            taken.append(self._order[index].grad)
            self._order[index].grad = None
        return taken

    def _lay_out(self) -> Pipeline:
        if self._pipeline is None:
            self._order = list(reversed(self._parameters))   # as gradients come
            statistics = [each for buffers in self._buffers for each in buffers.averaged]
            pipeline = self._pipeline = Pipeline(self._group, self._shards, [*self._order, *statistics])
            self._arrivals = Arrivals(self._order, pipeline.buckets, lambda bucket: pipeline.send(self._taken(bucket)))
        return self._pipeline

    def _lay_out_anew(self) -> None:
        """At the next step, for there are other parameters."""
        if self._arrivals is not None:
            self._arrivals.close()
        if self._pipeline is not None:
            self._pipeline.close()
        self._pipeline = self._arrivals = None

    def _take(self, sums: Sequence[torch.Tensor | None], odd: Sequence[int]) -> list[str]:
        for parameter, gradient in zip(self._order, sums, strict=False):
            parameter.grad = gradient
        changes = iter(sums[len(self._order):])
        for buffers in self._buffers:
            buffers.move([next(changes) for _ in buffers.averaged])
        self._spread_others()
        return self._odd_gradients(odd)

    def _spread_others(self) -> None:
        """What the first shard, which is rank 0's, made of other buffers."""
        changed = torch.tensor([is_changed for buffers in self._buffers for is_changed in buffers.others_changed()],
                               dtype=torch.int32, device=self._group.device)
        if len(changed):
            flags = iter(self._group.broadcast(changed).tolist())
            for buffers in self._buffers:
                buffers.take([self._group.broadcast(value()) if next(flags) else None for value in buffers.others()])

    def _odd_gradients(self, odd: Sequence[int]) -> list[str]:
        """A line at the first gradient that is not finite; with fp16 that is part of the search for a scale."""
        found = [self._parameters[self._order[index]] for index in sorted(odd, reverse=True)
                 if index < len(self._order)]
        if not found or self._told or self._amp == "fp16":
            return []
        self._told = True
        more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
        return [f"the gradient of {', '.join(found[:_MOST_NAMED])}{more} is not finite"]

    # Checkpoints

    def layout(self) -> dict[str, Any]:
        return {"world_size": self._group.size, "virtual shards": self._shards, **facts(self._group.device)}

    def resumed(self, layout: Mapping[str, Any]) -> list[str]:
        now = {"virtual shards": str(self._shards), **facts(self._group.device)}
        told = differences({name: str(layout.get(name)) for name in now}, now)
        return [f"From here on the bits may differ from those of the run before: {'; '.join(told)}."] if told else []

    def close(self) -> None:
        self._determinism.end()
        self._lay_out_anew()
        self._known.clear()
        self._parameters.clear()
        self._buffers.clear()
        super().close()
