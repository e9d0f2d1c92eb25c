"""What a training function holds: one object that assembles the parts and owns the order of things."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, overload

import torch
from torch import nn

from rankwise import keys, totals
from rankwise.data.loader import Loader
from rankwise.device import seed_torch
from rankwise.errors import MisuseError
from rankwise.group import Group
from rankwise.inhand import InHand
from rankwise.ledger import BACKWARD, FORWARD, OPTIMIZER, OTHER, OUTSIDE
from rankwise.microbatch import MicroBatch
from rankwise.modes import Mode
from rankwise.monitor import Monitor, Sink
from rankwise.prepared import Prepared
from rankwise.saving import Parts, Saving
from rankwise.settings import Settings
from rankwise.step import Stepper
from rankwise.stepagreement import StepAgreement

Optimizers = torch.optim.Optimizer | Sequence[torch.optim.Optimizer]

_STEPS = 2   # keeps the steps' random numbers apart from those of the data


class Run:
    """One training: its devices, its data, its steps, its log and its checkpoints.

    A training function gets a Run as its first argument and goes in this order: `prepare`, `loader`, `epochs`, `step`,
    `log`, `save`. Every method is called by every rank, unless its text says otherwise.
    """

    def __init__(self, settings: Settings, *, group: Group, mode: Mode, monitor: Monitor, agreement: StepAgreement,
                 folder: Path, resume_from: Path | None = None) -> None:
        self.settings = settings
        self.folder = folder
        self.epoch = 0
        self.steps = 0
        self._group, self._ledger, self._mode, self._monitor = group, group.ledger, mode, monitor
        self._own_key = keys.mix(settings.seed, group.rank if settings.exact is None else 0, _STEPS)
        self._stepper = Stepper(group, settings.amp, averaged_over=mode.averaged_over, shards=settings.exact or 1)
        self._prepared = Prepared()
        self._in_hand: InHand[Loader] = InHand()
        parts = Parts(group, agreement, mode, monitor, self._stepper, self._prepared, self._in_hand)
        self._saving = Saving(parts, settings, folder, resume_from)
        self._later_loaders = 0
        self._micro_batches_this_step = 0
        self._owes_step = False
        self._restored = False

    # Who and where

    @property
    def device(self) -> torch.device:
        """The device that this rank computes on; batches of `loader` arrive there."""
        return self._group.device

    @property
    def rank(self) -> int:
        return self._group.rank

    @property
    def world_size(self) -> int:
        return self._group.size

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0."""
        return self._group.is_main

    @property
    def mode(self) -> str:
        """The mode of this run: single, dp or ddp."""
        return self._mode.name

    @property
    def sinks(self) -> list[Sink]:
        """Where rank 0 sends what is logged; append an object with `open`, `write` and `close`."""
        return self._monitor.sinks

    # Preparing

    @overload
    def prepare(self, thing: Callable[[], nn.Module], **options: Any) -> nn.Module: ...
    @overload
    def prepare(self, thing: Any, **options: Any) -> Any: ...
    @overload
    def prepare(self, thing: Any, *more: Any, **options: Any) -> tuple[Any, ...]: ...

    def prepare(self, thing: Any, *more: Any, **options: Any) -> Any:
        """Place, replicate and register things; returns them (the same objects) in the same order.

        Takes modules, functions that build a module, optimizers, schedules, EMA copies: anything with a `state_dict`.
        What is prepared is what a checkpoint holds. The weights of a module are equal on all ranks from here on.

        Options for modules: `sync_batchnorm` (statistics over the global batch), and for mode ddp `find_unused`,
        `static_graph`, `bucket_mb`.
        """
        if more:
            return tuple(self.prepare(each, **options) for each in (thing, *more))
        if not isinstance(thing, nn.Module) and callable(thing) and not hasattr(thing, "state_dict"):
            thing = thing()
        if not (hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")):
            raise MisuseError(f"run.prepare was given a {type(thing).__name__}.",
                              "It takes what has a state_dict: modules, optimizers, schedules, EMA copies.",
                              "Use run.loader for data; leave other things as they are.")
        if isinstance(thing, nn.Module):
            self._saving.initialise(thing)
            thing = self._mode.prepare(thing, **options)
            self._monitor.watch(thing)
            for line in self._mode.notices(thing, **options):
                self.print(line)
        elif options:
            raise MisuseError(f"run.prepare was given {', '.join(options)} for a {type(thing).__name__}.",
                              "These options are for modules.", "Prepare the module by itself with them.")
        if self._prepared.add(thing) and isinstance(thing, torch.optim.Optimizer):
            self._stepper.take_over(thing)
        return thing

    def loader(self, dataset: Any, batch_size: int | None = None, **options: Any) -> Loader:
        """Batches of `dataset` for this rank, on its device: `batch_size` samples a step over all devices together.

        Make it before `epochs`: a checkpoint then keeps its position.
        See `rankwise.data.loader.Loader` for the options (shuffle, drop_last, weights, batch_sampler, collate_fn,
        num_workers, micro_batch, augment, sharded).
        """
        options.setdefault("micro_batch", self.settings.micro_batch)
        loader = Loader(dataset, batch_size, group=self._group, seed=self.settings.seed, number=self._number(),
                        replicas=self._mode.replicas, shards=self.settings.exact,
                        on_micro_batch=self._on_micro_batch, on_turn_end=self._on_turn_end, **options)
        if not self._restored:
            self._saving.loaders.append(loader)
        return loader

    def _number(self) -> int:
        """What tells a loader's order from another's: its place, or (made inside an epoch) the epoch and its place."""
        if not self._restored:
            return len(self._saving.loaders)
        self._later_loaders += 1
        return keys.mix(self.epoch, self._later_loaders)

    def _on_micro_batch(self, loader: Loader, micro_batch: MicroBatch | None) -> None:
        """The loader hands out a micro-batch, or (None) its pass is over."""
        if micro_batch is None:
            self._in_hand.put_down(loader)
            if not self._in_hand:
                self._ledger.enter(OUTSIDE)
            return
        self._in_hand.take(loader, micro_batch)
        if not torch.is_grad_enabled():
            return
        self._owes_step = True
        self._mode.expect(micro_batch)
        self._monitor.expect(loader, micro_batch)
        self._seed_torch(self._micro_batches_this_step if micro_batch.shard is None else micro_batch.shard)
        self._ledger.enter(FORWARD)

    def _on_turn_end(self, loader: Loader) -> None:
        """A loop body is over, and with it what the user does after an update: schedules, averages of weights."""
        if self._saving.due.is_awaited(loader):
            self._saving.grant(self.epoch, self.steps, is_in_step=self._is_in_step)

    def _seed_torch(self, part: int) -> None:
        """torch's own generators, from (seed, rank, step, part of the step): dropout differs between all of these.

        In exact mode the part is the virtual shard, and no rank comes in.
        """
        seed_torch(self.device, keys.mix_in(keys.mix_in(self._own_key, self.steps), part) >> 1)

    # The loop

    def epochs(self, total: int) -> Iterator[int]:
        """Epoch numbers up to `total`. The first turn restores all that was prepared where the run is resumed."""
        if not self._restored:
            self._restored = True
            self.epoch, self.steps = self._saving.restore()
        for epoch in range(self.epoch, total):
            self.epoch, self._later_loaders = epoch, 0
            with self._monitor.epoch(epoch, total):
                yield epoch
            self._saving.grant(epoch, self.steps, is_in_step=self._is_in_step)
        self.epoch = total

    def step(self, loss: Any, *rest: Any, weight: Any = None, reduction: str = "mean",
             clip_norm: float | None = None) -> bool:
        """One turn of the loop: weigh the loss, backward, and with the last micro-batch reduce, clip and update.

            run.step(loss, optimizer)                  the form for modes that hand out a loss
            run.step(loss_fn, batch, optimizer)        the form for every mode; `loss_fn(batch)` gives the loss

        The gradient is that of the loss over the global batch. `reduction` says what the loss is on a rank: the "mean"
        over its rows, or their "sum". `weight` is the loss's own denominator on this rank (tokens, summed class
        weights), a number or a 0-dim tensor; 0 where there is none. Returns True when the weights were updated: step
        schedules and EMA copies then.
        """
        if rest and callable(loss) and not isinstance(loss, torch.Tensor):
            loss, rest = loss(rest[0]), rest[1:]
        if len(rest) != 1:
            raise MisuseError(f"run.step was given {len(rest)} things after the loss.", "It takes the optimizer there.",
                              "Call run.step(loss, optimizer), or run.step(loss, [first, second]).")
        self._backward(loss, self._in_hand.share(None, self.world_size), weight, reduction, update_follows=True)
        return self.update(rest[0], clip_norm=clip_norm)

    def backward(self, loss: torch.Tensor, *, weight: Any = None, reduction: str = "mean",
                 loader: Loader | None = None) -> None:
        """Backward of a weighed loss, for loops with several losses, models or optimizers; then `update`.

        `loader` names the loader that the loss's rows came from, where several are in one loop.
        """
        self._backward(loss, self._in_hand.share(loader, self.world_size), weight, reduction, update_follows=False)

    def _backward(self, loss: torch.Tensor, share: MicroBatch, weight: Any, reduction: str, *,
                  update_follows: bool) -> None:
        weighed = self._stepper.weigh(loss, share, weight=weight, reduction=reduction)
        guarded = weighed.amount if weighed.may_be_empty else None
        self._ledger.enter(BACKWARD)
        try:
            with self._mode.reducing(loss, share, guarded, update_follows=update_follows):
                loss.backward(weighed.seed)  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            self._group.explain(error, "the backward pass")
            raise
        self._ledger.enter(OPTIMIZER if update_follows else FORWARD)
        self._monitor.add_loss(loss, weighed.amount, is_sum=reduction == "sum", shard=share.shard or 0)

    def update(self, optimizers: Optimizers, *, clip_norm: float | None = None) -> bool:
        """Clip and update after `backward`; False before the last micro-batch, and where fp16 overflowed.

        `clip_norm` bounds the norm of the gradient of the global batch over all parameters of these optimizers.
        """
        if self._ledger.phase != OPTIMIZER:
            self._ledger.enter(OPTIMIZER)
        chosen = [optimizers] if isinstance(optimizers, torch.optim.Optimizer) else list(optimizers)
        self._prepared.require(chosen)
        self._mode.require_known_parameters(chosen)
        self._owes_step = False
        ends = self._in_hand.ends_step()
        for line in self._mode.complete(is_last=ends):
            self.print(f"step {self.steps + 1}: {line}")
        if not ends:
            self._stepper.hold(chosen)
            self._micro_batches_this_step += 1
            self._ledger.enter(OTHER)
            return False
        try:
            updated = self._stepper.update(chosen, clip_norm=clip_norm)
            self._mode.after_update()
        except RuntimeError as error:
            self._group.explain(error, "the update")
            raise
        self._micro_batches_this_step = 0
        self._ledger.end_step()
        self.steps += 1
        self._group.at_step(self.steps)
        self._monitor.after_step(self.steps)
        self._saving.after_step(self.steps)
        return updated

    # Over all ranks

    def sum(self, value: Any) -> torch.Tensor:
        """Sum over all ranks of a number or of a tensor (element by element; integers as int64, floats as float64)."""
        return totals.total(self._group, value)

    def mean(self, value: Any, weight: Any = None) -> torch.Tensor:
        """Mean over the rows of all ranks, exact where ranks have different numbers of rows (0 included).

        `value` is a tensor [rows, ...]; or a mean already taken, with its `weight` (the number of rows behind it).
        Raises MisuseError for a single number without a weight.
        """
        return totals.mean(self._group, value, weight, in_order=self.settings.exact is not None)

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        """The rows of all ranks, on every rank, in the order of the data.

        `values` is [rows, ...]: one row for each sample of the batch in hand, or, after the loop, of the whole pass.
        """
        latest = self._in_hand.latest
        return totals.gathered(self._group, values, latest.positions(len(values)) if latest is not None else None)

    def agree(self, flag: bool) -> bool:
        """Whether any rank says yes; ask before stopping or branching on what one rank saw."""
        return self._group.agree(flag)

    def barrier(self) -> None:
        """Wait for all ranks."""
        self._group.barrier("run.barrier()")

    @contextlib.contextmanager
    def alone(self, place: str = "run.alone()") -> Iterator[bool]:
        """A block that rank 0 works in while the others wait, without a time-out of a collective.

            with run.alone() as mine:
                if mine:
                    upload(run.folder)
        """
        with self._group.alone(place) as mine:
            yield mine

    # Telling and keeping

    def print(self, *words: Any) -> None:
        """Print once, on rank 0, without breaking the progress line."""
        self._monitor.print(*words)

    def log(self, **values: Any) -> None:
        """Log numbers or 0-dim tensors under the current step and epoch; rank 0's values are kept."""
        self._monitor.log(values, step=self.steps, epoch=self.epoch)

    def save(self, *, wait: bool = False) -> Path:
        """Keep a checkpoint of all that was prepared and of the position; returns the folder that it will be in.

        Call it after `run.step` returned True, or last in an epoch's body: an epoch whose data is used up counts as
        finished. What is kept is the state at this moment; it is written beside the training, which goes on also where
        the disk fails, and says so. With `wait` it is on the disk when this returns, or CheckpointError is raised.
        Raises MisuseError in the middle of a global batch, and CheckpointError for a state that is no plain values.
        """
        return self._saving.save(self.epoch, self.steps, is_in_step=self._is_in_step, wait=wait)

    @property
    def _is_in_step(self) -> bool:
        return (self._owes_step and bool(self._in_hand)) or self._stepper.is_accumulating

    def export(self, path: str | Path) -> None:
        """Write the first prepared model's plain state dict with torch.save, atomically, from rank 0."""
        self._saving.export(Path(path))

    def finish(self) -> None:
        """The training function has returned: bring what it made to the disk, and say where it is."""
        self._saving.finish()
        self._monitor.finished()

    def close(self, how: str = "finished", limit_seconds: float | None = None) -> None:
        """Finish the last checkpoint, log how the run ended and let go of the replicas; the launcher calls this.

        `limit_seconds` bounds the wait for the disk, where somebody waits at the keyboard.
        """
        self._saving.finish(limit_seconds)
        self._monitor.close(how)
        self._mode.close()
        self._prepared.clear()
