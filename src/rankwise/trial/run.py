"""A Run that measures its steps, leaves what it measured, and ends."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rankwise.data.loader import Loader
from rankwise.ledger import OUTSIDE, PHASES, TOTAL_FROM, Book
from rankwise.microbatch import MicroBatch
from rankwise.monitor.memory import peak_memory_bytes
from rankwise.run import Optimizers, Run
from rankwise.trial.plan import TrialPlan
from rankwise.trial.result import Progress, RankTrial, TrialOver

_SAMPLE_STEPS = 10


class TrialRun(Run):
    """A Run that measures its steps and ends after the last of them."""

    def __init__(self, plan: TrialPlan, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._plan, self._books = plan, list[Book]()
        self._samples = self._micro_batches = self._global_batch = 0
        self._progress, self._first_step_at = Progress(Path(plan.folder)), 0.0
        self._loss = self._loss_weight = 0.0
        self._arrivals: dict[nn.Parameter, list[float]] = {}
        self._backward_began_at = 0.0

    @property
    def _is_measured(self) -> bool:
        """Whether the step under way is."""
        return self.steps >= self._plan.warm_up

    def prepare(self, thing: Any, *more: Any, **options: Any) -> Any:
        prepared = super().prepare(thing, *more, **options)
        if self._plan.arrivals:
            for each in prepared if more else (prepared,):
                if isinstance(each, nn.Module):
                    self._note_arrivals(each)
        return prepared

    def _note_arrivals(self, module: nn.Module) -> None:
        for parameter in module.parameters():
            if parameter.requires_grad and parameter not in self._arrivals:
                seconds = self._arrivals[parameter] = []
                hooked: Any = parameter
                hooked.register_post_accumulate_grad_hook(
                    lambda _, seconds=seconds: seconds.append(time.perf_counter() - self._backward_began_at))

    def _on_micro_batch(self, loader: Loader, micro_batch: MicroBatch | None) -> None:
        super()._on_micro_batch(loader, micro_batch)
        if micro_batch is not None and torch.is_grad_enabled() and self._is_measured:
            self._micro_batches += 1
            self._samples += micro_batch.global_rows if micro_batch.is_first else 0
            self._global_batch = max(self._global_batch, micro_batch.global_rows)

    def _backward(self, loss: torch.Tensor, share: MicroBatch, weight: Any, reduction: str, *,
                  update_follows: bool) -> None:
        if share.is_first and self._arrivals and not self._is_measured:
            for seconds in self._arrivals.values():
                seconds.clear()
        self._backward_began_at = time.perf_counter()
        super()._backward(loss, share, weight, reduction, update_follows=update_follows)
        if self.steps + 1 == self._plan.warm_up + self._plan.steps:
            self._note_loss(loss, float(share.rows if weight is None else weight if share.rows else 0.0), reduction)

    def _note_loss(self, loss: torch.Tensor, amount: float, reduction: str) -> None:
        if amount > 0:   # the mean over no rows is NaN, and counts nothing
            self._loss += loss.item() * (1.0 if reduction == "sum" else amount)
            self._loss_weight += amount

    def update(self, optimizers: Optimizers, *, clip_norm: float | None = None) -> bool:
        before, measured = self.steps, self._is_measured
        updated = super().update(optimizers, clip_norm=clip_norm)
        if self.steps == before:   # in the middle of a global batch
            return updated
        book = self._ledger.close(samples_next=(self.steps - self._plan.warm_up) % _SAMPLE_STEPS == 0)
        if measured:
            self._books.append(book)
        if self.steps == 1:
            self._synchronise()
            self._first_step_at = time.time()
        if self.is_main:
            self._progress.tell(self.steps)
        if self.steps == self._plan.warm_up + self._plan.steps:
            self._write()
            raise TrialOver
        return updated

    def finish(self) -> None:
        """A training may be shorter than its trial."""
        if self._books:
            self._write()

    def _synchronise(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _write(self) -> None:
        steps = [book.seconds() for book in self._books]
        totals = [book.communication_seconds for book in self._books if book.communication_seconds is not None]
        result = RankTrial(
            rank=self.rank, world_size=self.world_size, mode=self.mode, first_step_at=self._first_step_at,
            step_seconds=[sum(seconds) - seconds[OUTSIDE] for seconds in steps],
            split={name: statistics.fmean(seconds[phase] for seconds in steps)
                   for phase, name in enumerate(PHASES) if phase != OUTSIDE},
            communication_total=statistics.median(totals) if totals else None,
            communication_from=TOTAL_FROM if totals else "",
            wire_bytes=statistics.fmean(book.sent_bytes for book in self._books),
            samples=self._samples, global_batch=self._global_batch, micro_batches=self._micro_batches,
            loss=self._loss if math.isfinite(self._loss) else None, loss_weight=self._loss_weight,
            memory_bytes=peak_memory_bytes(self.device, self._mode.replicas),
            model=_facts(self._prepared.things.values()), arrivals=self._median_arrivals())
        result.write(Path(self._plan.folder))

    def _median_arrivals(self) -> list[tuple[int, float]]:
        found = [(parameter.nbytes, statistics.median(seconds))
                 for parameter, seconds in self._arrivals.items() if seconds]
        return sorted(found, key=lambda arrival: arrival[1])


def _facts(things: Iterable[Any]) -> dict[str, int]:
    """Numbers and bytes of what was prepared; what two modules share counts once."""
    modules = [thing for thing in things if isinstance(thing, nn.Module)]
    parameters = list(dict.fromkeys(each for module in modules for each in module.parameters()))
    buffers = list(dict.fromkeys(each for module in modules for each in module.buffers()))
    state = [value for thing in things if isinstance(thing, torch.optim.Optimizer)
             for entry in thing.state.values() for value in entry.values() if isinstance(value, torch.Tensor)]
    return {"parameters": sum(each.numel() for each in parameters), "parameter_bytes": _bytes(parameters),
            "gradient_bytes": _bytes([each for each in parameters if each.requires_grad]),
            "buffer_bytes": _bytes(buffers), "optimizer_bytes": _bytes(state)}


def _bytes(tensors: Sequence[torch.Tensor]) -> int:
    return sum(each.nbytes for each in tensors)
