"""One optimizer step: weigh the losses of a global batch, go backward, and update the weights once.

Ranks average their gradients, and each rank's loss is a mean over its own rows. Seeding a backward pass with
rows * ranks / global_rows makes the average the gradient of the mean over the global batch, for slices of any size.
A loss with a denominator of its own (tokens, class weights) is seeded with that weight, the weights are summed over
ranks and micro-batches meanwhile, and the update divides by their sum. Nothing here makes the host wait for the device,
but for the scaler of fp16, which decides once a step whether to skip it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch.optim import Optimizer

from rankwise.errors import MisuseError
from rankwise.group import Group, Pending
from rankwise.microbatch import MicroBatch


class Weighed(NamedTuple):
    """A loss's part in the step."""

    seed: torch.Tensor
    """0-dim, of the loss's dtype: `loss.backward(seed)` adds its share of the gradient."""
    amount: torch.Tensor
    """0-dim, on the device: what the loss counts in a mean, its rows or its weight."""
    may_be_empty: bool
    """Whether `amount` may be 0 and the loss not a number."""


class Stepper:
    """Backward passes and updates of one rank. A window is what lies between two updates: one global batch."""

    def __init__(self, group: Group, amp: str = "no", *, averaged_over: int | None = None, shards: int = 1) -> None:
        """Gradients are averaged over as many ranks (default: all). `shards` is the number of virtual ones, if any."""
        self._group, self._shards = group, shards
        self._replicas = group.size if averaged_over is None else averaged_over
        self._float = torch.float32 if group.device.type == "mps" else torch.float64
        self._scaler = torch.amp.GradScaler(group.device.type) if amp == "fp16" else None
        self._scaler_owes_update = False
        self._window = _Window()
        self._open = False
        self._is_updating = False
        self._held = _Held()
        self._known: list[Optimizer] = []
        self._latest_kind: Any = None   # most losses weigh what the one before did
        self._latest: Weighed

    def take_over(self, optimizer: Optimizer) -> None:
        """From now on only `update` may step this optimizer; by hand it raises MisuseError."""
        optimizer.register_step_pre_hook(self._require_update)

    def _require_update(self, optimizer: Optimizer, *_: Any) -> None:
        if not self._is_updating:
            raise MisuseError(f"step() of a prepared {type(optimizer).__name__} was called.",
                              "It knows nothing of other ranks, of micro-batches and of the checkpoint's position.",
                              "Write run.step(loss, optimizer) in place of loss.backward() and optimizer.step().")

    @property
    def is_accumulating(self) -> bool:
        """Whether gradients are held that no update has used."""
        return self._open or bool(self._held)

    def weigh(self, loss: torch.Tensor, micro_batch: MicroBatch, *, weight: Any = None,
              reduction: str = "mean") -> Weighed:
        """What a backward pass from this loss must begin with, so that it adds this rank's share of the gradient.

        Raises MisuseError for a loss without a gradient, or a step of losses that cannot be weighed together.
        """
        _require_loss(loss, reduction)
        if not self._open:
            self._begin_window()
        self._held.require_kept()
        if weight is None:
            weighed = self._by_rows(loss, micro_batch, reduction)
        else:
            weighed = self._by_weight(loss, micro_batch, reduction, weight)
        return weighed if self._scaler is None else weighed._replace(seed=self._scaler.scale(weighed.seed))

    def _begin_window(self) -> None:
        self._settle_scaler()
        self._window = _Window()
        self._window.stale = [each for each in self._known if each not in self._held and _has_gradient(each)]
        self._open = True

    def _by_rows(self, loss: torch.Tensor, share: MicroBatch, reduction: str) -> Weighed:
        self._window.require_one_kind(weighted=False)
        kind = (share, reduction, loss.dtype)
        if kind != self._latest_kind:
            mean = share.rows * self._replicas / share.global_rows
            factor = mean if reduction == "mean" else float(self._replicas) if share.rows else 0.0
            self._latest_kind = kind
            self._latest = Weighed(_constant(factor, loss.dtype, loss.device),
                                   _constant(float(share.rows), self._float, loss.device), share.rows == 0)
        return self._latest

    def _by_weight(self, loss: torch.Tensor, share: MicroBatch, reduction: str,
                   weight: Any) -> Weighed:
        window = self._window
        window.require_one_kind(weighted=True)
        window.require_first_weighted_loss_of(share)
        amount = self._weight_tensor(weight if share.rows else 0.0, loss.device)
        if window.weights is None:   # a shard's own place, so that the order in which they are added is fixed
            window.weights = torch.zeros(self._shards, dtype=self._float, device=loss.device)
        window.weights[share.shard or 0] += amount
        if share.is_last:
            window.total = self._group.sum_later(window.weights)
            window.global_rows = share.global_rows
        factor = self._replicas / share.global_rows if share.rows else 0.0
        seed = (amount * factor).to(loss.dtype) if reduction == "mean" else _constant(factor, loss.dtype, loss.device)
        return Weighed(seed, amount, may_be_empty=True)

    def _weight_tensor(self, weight: Any, device: torch.device) -> torch.Tensor:
        try:
            amount = torch.as_tensor(weight, dtype=self._float, device=device).detach().clone()   # it is kept
        except (TypeError, ValueError, RuntimeError):
            amount = None
        if amount is None or amount.ndim != 0:
            given = f"of shape {list(amount.shape)}" if amount is not None else f"of type {type(weight).__name__}"
            raise MisuseError(f"The weight of a loss is {given}.",
                              "It is one number or a 0-dim tensor: the denominator of this rank's mean.",
                              "Give weight=tokens.sum(), for example.")
        return amount

    def hold(self, optimizers: Sequence[Optimizer]) -> None:
        """Instead of an update, before the last micro-batch: note the gradients, which must still be there later."""
        self._held.note(optimizers)

    def update(self, optimizers: Sequence[Optimizer], *, clip_norm: float | None = None) -> bool:
        """Divide, clip and update, then clear the gradients; False where fp16 overflowed, on all ranks alike.

        Raises MisuseError where no backward pass went before, or a loss of an earlier step left its gradient.
        """
        self._window.require_first_update(optimizers)
        self._window.require_own_gradient(optimizers)
        for optimizer in optimizers:
            if optimizer not in self._known:
                self._known.append(optimizer)
        self._held.release(optimizers)
        if self._scaler is not None:
            for optimizer in optimizers:
                self._scaler.unscale_(optimizer)
        if self._window.total is not None:
            self._divide_by_weights(optimizers)
        if clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(_unique_parameters(optimizers), clip_norm)
        finite = self._scaler is None or self._is_finite(optimizers)
        self._is_updating = True
        for optimizer in optimizers:
            if finite:
                optimizer.step()
            _clear_gradients(optimizer)
        self._open = self._is_updating = False
        return finite

    def _divide_by_weights(self, optimizers: Sequence[Optimizer]) -> None:
        """From gradients that count each row once to the mean over all weights; zeros where there is no weight."""
        assert self._window.total is not None
        total = self._window.total.wait().sum()
        factor = torch.where(total > 0, self._window.global_rows / total, 0.0)
        gradients = [parameter.grad for parameter in _unique_parameters(optimizers) if parameter.grad is not None]
        if gradients:
            torch._foreach_mul_(gradients, factor)

    # fp16

    def _is_finite(self, optimizers: Sequence[Optimizer]) -> bool:
        """Whether no gradient overflowed: the one time that fp16 makes the host wait.

        Ranks hold the same averaged gradients here, so they answer alike.
        """
        assert self._scaler is not None
        self._scaler_owes_update = True
        found = [flag for optimizer in optimizers for flag in self._scaler._found_inf_per_device(optimizer).values()]
        return not any(flag.item() for flag in found)

    def _settle_scaler(self) -> None:
        """Adapt the scale once all updates of the window are through: they must all use the scale of its backwards."""
        if self._scaler is not None and self._scaler_owes_update:
            self._scaler.update()
            self._scaler_owes_update = False

    def state_dict(self) -> dict[str, Any]:
        """The scaler's state: plain numbers, empty without fp16."""
        self._settle_scaler()
        return self._scaler.state_dict() if self._scaler is not None else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with a saved scale; a run that went on from another precision begins with a fresh one."""
        if self._scaler is not None and state:
            self._scaler.load_state_dict(state)


class _Window:
    """What one global batch has seen so far, and the checks that hold in it."""

    weights: torch.Tensor | None = None
    total: Pending | None = None
    global_rows = 0
    _weighted: bool | None = None
    _latest_weighted: MicroBatch | None = None
    _updated: tuple[Optimizer, ...] = ()
    stale: Sequence[Optimizer] = ()

    def require_one_kind(self, *, weighted: bool) -> None:
        if self._weighted is (not weighted):
            raise MisuseError("One step has losses with weight= and losses without it.",
                              "Their gradients would be divided by different things.",
                              "Give weight= to each loss of the step, or to none.")
        self._weighted = weighted

    def require_first_weighted_loss_of(self, micro_batch: MicroBatch) -> None:
        if self._latest_weighted is micro_batch:
            raise MisuseError("One micro-batch has two losses with weight=, and one update.",
                              "Each of them would have to be divided by its own sum of weights.",
                              "Add the losses up and give the sum to one run.step, or update after each of them.")
        self._latest_weighted = micro_batch

    def require_first_update(self, optimizers: Sequence[Optimizer]) -> None:
        if self._weighted is None or any(optimizer in self._updated for optimizer in optimizers):
            raise MisuseError("run.update was called, and no run.backward went before it.",
                              "Gradients that loss.backward() computes are not averaged over the ranks.",
                              "Call run.step(loss, optimizer), or run.backward(loss) and then run.update(optimizer).")
        self._updated += tuple(optimizers)

    def require_own_gradient(self, optimizers: Sequence[Optimizer]) -> None:
        for optimizer in optimizers:
            if optimizer in self.stale:
                raise MisuseError(f"The step began with a gradient in the parameters of {type(optimizer).__name__}.",
                                  "An earlier loss reached them, and another optimizer's update followed; or "
                                  "loss.backward() was called by hand.",
                                  "Freeze them for that loss (model.requires_grad_(False), then True again), or call "
                                  "zero_grad() after it.")


class _Held:
    """Gradients of earlier micro-batches, each optimizer's until its update: they must still be there then."""

    def __init__(self) -> None:
        self._marks: dict[Optimizer, tuple[torch.Tensor, torch.Tensor | None, int]] = {}

    def __contains__(self, optimizer: Optimizer) -> bool:
        return optimizer in self._marks

    def __bool__(self) -> bool:
        return bool(self._marks)

    def note(self, optimizers: Sequence[Optimizer]) -> None:
        for optimizer in optimizers:
            for parameter in _parameters([optimizer]):
                if parameter.grad is not None:
                    self._marks[optimizer] = parameter, parameter.grad, parameter.grad._version
                    break

    def release(self, optimizers: Sequence[Optimizer]) -> None:
        for optimizer in optimizers:
            self._marks.pop(optimizer, None)

    def require_kept(self) -> None:
        """Before a backward pass: nothing touched them since they were noted, or, later in a body, cleared them."""
        for optimizer, (parameter, gradient, version) in self._marks.items():
            now = parameter.grad
            if now is None or (gradient is not None and (now is not gradient or now._version != version)):
                raise MisuseError(f"Gradients of {type(optimizer).__name__} were changed in the middle of a global "
                                  "batch, by zero_grad() or by a loss for another optimizer.",
                                  "Its update needs those of the earlier micro-batches as they were.",
                                  "Leave zero_grad() out: run.step clears the gradients after each update. Freeze what "
                                  "another optimizer's loss must not reach (requires_grad_(False)).")
            self._marks[optimizer] = parameter, None, 0   # this backward pass may change them


def _require_loss(loss: Any, reduction: str) -> None:
    if not isinstance(loss, torch.Tensor) or loss.ndim != 0:
        given = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise MisuseError(f"The loss is {given}.", "It must be a 0-dim tensor.",
                          "Take the mean over the rows, for example loss.mean().")
    if not loss.requires_grad:
        raise MisuseError("The loss has no gradient.",
                          "It was computed under no_grad, from detached outputs, or from frozen parameters alone.",
                          "Compute it from the outputs of a prepared module that has trainable parameters.")
    if reduction not in ("mean", "sum"):
        raise MisuseError(f"reduction is {reduction!r}.", 'It is "mean" or "sum": what the loss is over its rows.',
                          'Give reduction="mean", or leave it out.')


def _parameters(optimizers: Iterable[Optimizer]) -> Iterable[torch.Tensor]:
    return (parameter for optimizer in optimizers for group in optimizer.param_groups for parameter in group["params"])


def _has_gradient(optimizer: Optimizer) -> bool:
    for group in optimizer.param_groups:
        for parameter in group["params"]:   # written out, for it is walked in every step
            if parameter.grad is not None:
                return True
    return False


def _clear_gradients(optimizer: Optimizer) -> None:
    """zero_grad(set_to_none=True); without the profiler's bookkeeping, which takes longer than the rest of it."""
    if type(optimizer).zero_grad is not Optimizer.zero_grad:
        optimizer.zero_grad(set_to_none=True)
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


def _unique_parameters(optimizers: Iterable[Optimizer]) -> list[torch.Tensor]:
    return list(dict.fromkeys(_parameters(optimizers)))


@lru_cache(maxsize=1024)
def _constant(value: float, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A 0-dim tensor made once, for filling it anew would be one more kernel in each step. It is only read."""
    return torch.full((), value, dtype=dtype, device=device)
