"""The mean of a module's gradients over all ranks, taken while backward computes them.

torch's DistributedDataParallel does the work: it puts gradients in buckets and reduces a bucket when its last gradient
is there. Its forward is not used. All that the forward does for the gradients is to tell the reducer that a backward
comes, and that is better said where the backward begins: the module stays the user's own, its methods and submodules
may be called in any way, and several losses may share a forward.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from rankwise.errors import MisuseError
from rankwise.group import Group
from rankwise.modes.options import PrepareOptions


class Reduction:
    """Averages the gradients of `parameters` (by name) over the ranks of `group`, of those that are trainable."""

    def __init__(self, owner: str, parameters: dict[str, nn.Parameter], group: Group, options: PrepareOptions) -> None:
        self._owner, self._parameters, self._group, self._options = owner, parameters, group, options
        self._trainable: list[bool] = []
        self._ddp: Any = None
        self._proved = False
        self.bucket_bytes: list[int] = []
        self.follow()

    @property
    def announces_all(self) -> bool:
        """Whether every backward that may reach these parameters must be announced, not the last of a step alone."""
        return self._options.static_graph

    @property
    def looks_for_unused(self) -> bool:
        return self._options.find_unused

    def follow(self) -> bool:
        """Whether there is a trainable parameter; where others were frozen or unfrozen, the buckets are laid out anew.

        All ranks come here at the same backward. A module that is frozen as a whole keeps its buckets for later.
        """
        trainable = [parameter.requires_grad for parameter in self._parameters.values()]
        if not any(trainable):
            return False
        if trainable != self._trainable:
            self._trainable, self._proved = trainable, False
            self.close()
            parameters = [parameter for parameter in self._parameters.values() if parameter.requires_grad]
            gradients = [parameter.grad for parameter in parameters]   # of earlier micro-batches
            self._lay_out(parameters)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
        return True

    def _lay_out(self, parameters: list[nn.Parameter]) -> None:
        for parameter in parameters:
            parameter.grad = None   # a bucket would take it over
        bucket: Any = {} if self._options.bucket_mb is None else {"bucket_cap_mb": self._options.bucket_mb}
        self._ddp = DistributedDataParallel(
            nn.ParameterList(parameters), process_group=self._group.process_group, init_sync=False,
            gradient_as_bucket_view=True,
            find_unused_parameters=self._options.find_unused, static_graph=self._options.static_graph, **bucket)
        self._ddp._set_ddp_runtime_logging_sample_rate(1)   # each step that `begin` announces as one to be timed
        if self._options.static_graph:   # after the first backward
            self.bucket_bytes = []
            return
        if not self._options.find_unused:
            self._fix_buckets(parameters)
        self.bucket_bytes = self._bucket_bytes()

    def _fix_buckets(self, parameters: list[nn.Parameter]) -> None:
        """Lay out the buckets now, for torch would do it after the first step.

        Sums over three and more ranks have other bits in another layout, so a run that continues from a checkpoint
        would differ in its first step. Gradients arrive here in reverse order of definition, as in most backwards.
        """
        self._ddp.reducer.prepare_for_backward([])
        for parameter in reversed(parameters):
            parameter.backward(torch.zeros_like(parameter))  # type: ignore[no-untyped-call]
        self._ddp.reducer._rebuild_buckets()

    def begin(self, loss: torch.Tensor) -> None:
        """A backward from `loss` begins: reduce what it computes, together with what was accumulated before."""
        if self._is_timed:
            self._ddp.reducer.prepare_for_forward()   # torch's DDP times a step from here on
        self._ddp.reducer.prepare_for_backward([loss] if self._options.find_unused else [])

    def finish(self) -> None:
        """The backward is over. Raises MisuseError where it reached some of the parameters and not others."""
        if self._options.static_graph and not self.bucket_bytes:
            self._learn_graph()
        try:
            self._ddp.reducer._check_reducer_finalized()
        except RuntimeError:
            raise self._unused() from None
        self._account()

    @property
    def _is_timed(self) -> bool:
        """Reading torch's times would make the host wait for a CUDA device."""
        return self._group.ledger.is_sampling and self._group.device.type == "cpu"

    def _account(self) -> None:
        """Note what was sent, and now and then how long it was under way."""
        ledger = self._group.ledger
        ledger.sent(self._group.all_reduce_bytes(sum(self.bucket_bytes)))
        if self._is_timed:
            self._ddp.logger.set_runtime_stats_and_log()
            nanoseconds = self._ddp._get_ddp_logging_data().get("backward_comm_time")
            if nanoseconds is not None:
                ledger.communicated(nanoseconds / 1e9)

    def prove(self) -> None:
        """After the first backward in a layout: raise MisuseError where gradients are not the same on all ranks.

        It catches what reaches a parameter after its bucket was reduced, which torch does not always notice.
        """
        gradients = {name: parameter.grad for name, parameter in self._parameters.items() if parameter.grad is not None}
        if self._proved or not gradients:
            return
        self._proved = True
        sums = torch.stack([gradient.sum().float() for gradient in gradients.values()]).nan_to_num()
        largest, smallest = self._group.max(torch.stack([sums, -sums]))
        differing = [name for name, differs in zip(gradients, (largest != -smallest).tolist(), strict=True) if differs]
        if differing:
            raise MisuseError(f"Ranks hold different averaged gradients of {self._owner}: {_listed(differing)}.",
                              "Reentrant activation checkpointing of a layer that is used several times does that.",
                              "Use checkpoint(..., use_reentrant=False), or prepare(model, static_graph=True).")

    def _learn_graph(self) -> None:
        """After the first backward of a static graph, which only counts: reduce, and lay out buckets in its order."""
        self._ddp.reducer._delay_all_reduce()
        self._ddp.reducer._rebuild_buckets()
        self.bucket_bytes = self._bucket_bytes()

    def _unused(self) -> MisuseError:
        names = [name for name, parameter in self._parameters.items()
                 if parameter.requires_grad and parameter.grad is None]
        return MisuseError(f"The loss does not depend on these parameters of {self._owner}: {_listed(names)}.",
                           "Without a gradient from every rank their average cannot be taken.",
                           "Freeze them (requires_grad_(False)), or use run.prepare(model, find_unused=True).")

    def _bucket_bytes(self) -> list[int]:
        """Bytes of each bucket, in order of reduction."""
        return [bucket.buffer().nbytes for bucket in self._ddp.reducer._get_zeros_like_grad_buckets()]

    def close(self) -> None:
        """Let go of torch's reducer, whose transport must end before the interpreter does."""
        if self._ddp is not None:
            self._ddp.reducer._remove_autograd_hooks()
            self._ddp = None


def _listed(names: list[str]) -> str:
    return (", ".join(names[:8]) or "not known") + (f" and {len(names) - 8} more" if len(names) > 8 else "")
