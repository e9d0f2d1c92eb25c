"""Mode ddp: a process for each device; gradients are averaged during backward, buffers after each update."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from rankwise.errors import MisuseError
from rankwise.group import Group
from rankwise.ledger import Ledger
from rankwise.microbatch import MicroBatch
from rankwise.modes.agreement import equalise, require_same_module
from rankwise.modes.batchnorm import spread_batchnorm
from rankwise.modes.buffers import Buffers
from rankwise.modes.guard import Guard
from rankwise.modes.inplace import put_in_front
from rankwise.modes.known import KnownParameters
from rankwise.modes.norows import StandIn, TakesNoRows
from rankwise.modes.notices import layout_notices
from rankwise.modes.options import PrepareOptions
from rankwise.modes.reduction import Reduction
from rankwise.modes.single import Single


class DDP(Single):
    """Every rank holds a replica of each module. With one rank it does what mode single does."""

    name = "ddp"

    def __init__(self, *, group: Group, devices: int = 1, amp: str = "no") -> None:
        super().__init__(group=group, devices=devices, amp=amp)
        self._reductions: list[Reduction] = []
        self._buffers: list[Buffers] = []
        self._stand_in = StandIn()
        self._rows = 1
        self._known = KnownParameters("Their gradients are not averaged over the ranks, so the ranks would part.")

    def _replicate(self, module: nn.Module, options: PrepareOptions) -> None:
        if self._group.size == 1:
            return
        require_same_module(module, self._group)
        equalise(module, self._group)
        own = {name: parameter for name, parameter in module.named_parameters() if parameter not in self._known}
        self._known.update(module.parameters())
        if not isinstance(module, AveragedModel):   # that follows the weights, which are equal
            spread_batchnorm(module, self._group, self._stand_in, synchronised=options.sync_batchnorm)
            self._buffers.append(Buffers(module, self._group))
            self._reductions.append(Reduction(type(module).__name__, own, self._group, options))
        put_in_front(TakesNoRows, module, _stand_in=self._stand_in)

    def notices(self, module: nn.Module, **options: Any) -> list[str]:
        return layout_notices(module, synchronised=bool(options.get("sync_batchnorm"))) if self._group.size > 1 else []

    def expect(self, micro_batch: MicroBatch) -> None:
        super().expect(micro_batch)
        self._rows = micro_batch.rows + (0 if micro_batch.is_first else self._rows)

    def after_update(self) -> None:
        for buffers in self._buffers:
            buffers.equalise(self._rows)

    def reducing(self, loss: torch.Tensor, micro_batch: MicroBatch, amount: torch.Tensor | None = None, *,
                 update_follows: bool = False) -> AbstractContextManager[None]:
        """Average gradients in this backward where it is the last of a global batch.

        Averaging in an earlier micro-batch as well costs time and changes nothing: a mean of equal means is the same.
        It happens to a module that the loss did not reach when it was due. Two cases must announce every backward: a
        static graph, in which torch counts them, and unused parameters, which may be others by then.
        """
        several = len(self._reductions) > 1
        expected = [reduction for reduction in self._reductions
                    if (micro_batch.is_last or reduction.announces_all or (several and reduction.looks_for_unused))
                    and reduction.follow()]
        guard = self._guard.against(amount)
        provable = micro_batch.is_last and (micro_batch.is_first or not several)   # else some wait for their own loss
        if not expected:
            return guard
        return _reducing(expected, loss, guard, self._group.ledger, provable)

    def require_known_parameters(self, optimizers: list[torch.optim.Optimizer]) -> None:
        if self._group.size > 1:
            self._known.require(optimizers)

    def layout(self) -> dict[str, Any]:
        buckets = [reduction.bucket_bytes for reduction in self._reductions]
        return {"world_size": self._group.size, "bucket_bytes": buckets}

    def close(self) -> None:
        for reduction in self._reductions:
            reduction.close()
        self._reductions.clear()
        self._buffers.clear()
        self._known.clear()
        super().close()


@contextlib.contextmanager
def _reducing(reductions: list[Reduction], loss: torch.Tensor, guard: Guard, ledger: Ledger,
              provable: bool) -> Iterator[None]:
    for reduction in reductions:
        reduction.begin(loss)
    try:
        with guard, ledger.tail_of_backward(loss):
            yield
    except RuntimeError as error:
        if "mark a variable ready only once" not in str(error):
            raise
        raise MisuseError("A parameter got its gradient twice in one backward pass.",
                          "Reentrant activation checkpointing does that, where a layer is used several times.",
                          "Use checkpoint(..., use_reentrant=False), or prepare(model, static_graph=True).") from error
    for reduction in reductions:
        reduction.finish()
    if provable:
        for reduction in reductions:
            reduction.prove()
