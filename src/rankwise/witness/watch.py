"""What a rank's training does, step by step, written down as it happens."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from rankwise.witness import changes, seen
from rankwise.witness.hooks import listening
from rankwise.witness.indices import noted
from rankwise.witness.models import Models, hashes, settings_of, unwrapped
from rankwise.witness.plan import Plan, tensor_file
from rankwise.witness.record import ENOUGH, Record
from rankwise.world import World

_BEFORE_THE_FIRST_STEP = 4   # times as much patience: data is read there


class Enough(SystemExit):
    """The steps that were asked for are made: this rank ends here, in good order."""


class Watch:
    """One rank's witness.

    What a step left behind (parameters, buffers) is looked at when the next training forward begins, for only then is
    all over that belongs to the step. The rank ends there too, after the last step.
    """

    def __init__(self, plan: Plan, world: World) -> None:
        self._plan, self._world = plan, world
        self._record = Record(Path(plan.folder), world.rank, world.size)
        self._models = Models()
        self._changes = changes.Changes(plan, world)
        self._optimizers: list[torch.optim.Optimizer] = []
        self._settings: dict[int, Any] = {}
        self._steps = 0
        self._owes_state = False
        self._moved_at = time.monotonic()
        self._clear()

    def _clear(self) -> None:
        """What is seen from one step to the next."""
        self._losses: list[list[float]] = []
        self._rows: dict[str, list[str]] = {}
        self._clips: list[list[float]] = []
        self._plateaus: list[float] = []

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """A block that runs the script."""
        self._record.write("start", rank=self._world.rank, world_size=self._world.size)
        threading.Thread(target=self._lose_patience, name="rankwise-witness", daemon=True).start()
        try:
            with self._changes.made(), noted(self._record.write), listening(self):
                yield
            self._settle()
            self._end("returned")
        except BaseException as error:
            self._end(f"failed with {type(error).__name__}", error=str(error)[:2000])
            raise

    # Told by the hooks

    def before_forward(self, module: nn.Module, args: tuple[Any, ...],
                       kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        self._moved_at = time.monotonic()   # an evaluation moves too
        own = unwrapped(module)
        if not (module.training and torch.is_grad_enabled()) or next(own.parameters(), None) is None:
            return args, kwargs
        self._settle()
        if self._steps >= self._plan.steps:
            self._end(ENOUGH)
            self._record.wait_for_others(self._plan.patience_seconds)
            raise Enough(0)
        if self._models.add(own):
            self._record.write("model", name=self._models.name_of_root(own), layers=self._models.layers())
            self._changes.at_first_call(own, self._models)
        self._changes.at_call(own)
        batch = seen.first_batch(*args, *kwargs.values())
        if batch is not None and not batch.requires_grad:
            self._rows.setdefault(self._models.name_of_root(own), []).extend(seen.rows(batch))
        return self._changes.inputs(args, kwargs)

    def before_backward(self, outputs: Any, seeds: Any) -> None:
        """A loss's part in what the ranks minimise (itself, times what its backward pass begins with), and itself."""
        if isinstance(outputs, torch.Tensor) and outputs.grad_fn is not None:
            seed = seeds if isinstance(seeds, torch.Tensor) else torch.ones_like(outputs)
            loss = outputs.detach().double()
            part = torch.where(seed == 0, 0.0, loss * seed.detach().double())
            self._losses.append([float(part.sum()), float(loss.sum())])

    def clipped(self, total_norm: Any, max_norm: Any) -> None:
        self._clips.append([float(total_norm), float(max_norm)])

    def plateau(self, number: Any) -> None:
        self._plateaus.append(float(number))

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        if not any(optimizer is known for known in self._optimizers):
            self._optimizers.append(optimizer)
        parameters = self._models.parameters(self._optimizers)
        if self._steps == 0:
            self._keep("initial", parameters)
            self._record.write("state", step=0, parameters=hashes(parameters), buffers={})
        self._settle()
        gradients = {self._models.name_of(parameter): (seen.norm(parameter.grad), seen.content(parameter.grad))
                     for group in optimizer.param_groups for parameter in group["params"]
                     if parameter.grad is not None}
        number = next(number for number, known in enumerate(self._optimizers) if known is optimizer)
        settings = settings_of(optimizer)
        self._record.write(
            "step", step=self._steps + 1, optimizer=number, gradients=gradients, losses=self._losses, rows=self._rows,
            gradient_norm=math.hypot(*(norm for norm, _ in gradients.values())), clips=self._clips,
            plateaus=self._plateaus, lr=[group.get("lr") for group in settings],
            settings=None if self._settings.get(number) == settings else settings)
        self._settings[number] = settings
        self._clear()

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        self._steps += 1
        self._owes_state = True
        self._moved_at = time.monotonic()

    # What is kept

    def _settle(self) -> None:
        """Write what the latest step left behind."""
        if self._owes_state:
            self._owes_state = False
            self._record.write("state", step=self._steps, buffers=hashes(self._models.buffers()),
                               parameters=hashes(self._models.parameters(self._optimizers)))

    def _keep(self, moment: str, tensors: dict[str, torch.Tensor]) -> None:
        if self._world.is_main:
            save_file({name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()},
                      tensor_file(Path(self._plan.folder), moment))

    def _end(self, how: str, **values: Any) -> None:
        if how in (ENOUGH, "returned") and self._optimizers:
            self._keep("final", {**self._models.parameters(self._optimizers), **self._models.buffers()})
            values["buffers"] = sorted(self._models.buffers())
        self._record.end(how, steps=self._steps, noticed=self._changes.noticed(),
                         begun=bool(self._rows or self._losses), **values)

    def _lose_patience(self) -> None:
        """In a thread: when nothing was computed for too long, say where this rank waits, and end it."""
        main = threading.main_thread().ident
        while not self._record.has_ended:
            time.sleep(0.2)
            limit = self._plan.patience_seconds * (1 if self._steps else _BEFORE_THE_FIRST_STEP)
            if time.monotonic() - self._moved_at > limit:
                self._record.end("stuck", steps=self._steps, where=seen.place(sys._current_frames().get(main or 0)))
                os._exit(1)
