"""What an experiment changes in a training, from outside: one suspect at a time."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from rankwise.structure import map_tensors
from rankwise.witness import seen
from rankwise.witness.hooks import replaced
from rankwise.witness.indices import replayed
from rankwise.witness.models import Models
from rankwise.witness.plan import Plan, tensor_file
from rankwise.world import World

NUDGED = "nudged"
NO_DROPOUT = "no_dropout"
FROZEN_BATCHNORM = "frozen_batchnorm"
EQUAL_SEEDS = "equal_seeds"
EQUAL_WEIGHTS = "equal_weights"
SEEDED_SAMPLES = "seeded_samples"
REFERENCE_ORDER = "reference_order"
FLOAT64 = "float64"
_DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")


class Changes:
    """The changes of one plan, on one rank."""

    def __init__(self, plan: Plan, world: World) -> None:
        self._plan, self._world = plan, world
        self._wanted = set(plan.changes)
        self._noticed: set[str] = set()
        self._set_already: set[torch.Tensor] = set()

    def noticed(self) -> list[str]:
        """What was seen at work: `dropout`, and the dtypes of mixed precision (`bfloat16`)."""
        return sorted(self._noticed)

    @contextlib.contextmanager
    def made(self) -> Iterator[None]:
        """A block in which torch is changed as the plan says."""
        with contextlib.ExitStack() as stack:
            for name in _DROPOUTS:
                stack.enter_context(replaced(F, name, self._dropout))
            stack.enter_context(replaced(torch.amp.autocast_mode.autocast, "__enter__", self._autocast))
            stack.enter_context(replaced(F, "scaled_dot_product_attention", self._attention))
            if EQUAL_SEEDS in self._wanted:
                stack.enter_context(self._seeds())
            if SEEDED_SAMPLES in self._wanted:
                stack.enter_context(_samples_seeded(self._plan.seed))
            if REFERENCE_ORDER in self._wanted and self._plan.reference is not None:
                stack.enter_context(replayed(Path(self._plan.reference), self._world))
            if FLOAT64 in self._wanted:
                torch.set_default_dtype(torch.float64)
                stack.callback(torch.set_default_dtype, torch.float32)
            yield

    def _dropout(self, original: Any) -> Any:
        def call(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
            if training and p > 0:
                self._noticed.add("dropout")
                if NO_DROPOUT in self._wanted:
                    return input
            return original(input, p, training, inplace)
        return call

    def _autocast(self, original: Any) -> Any:
        def call(context: Any) -> Any:
            if context._enabled:
                self._noticed.add(str(context.fast_dtype).removeprefix("torch."))
            return original(context)
        return call

    def _attention(self, original: Any) -> Any:
        def call(query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
                 *args: Any, **kwargs: Any) -> Any:
            if dropout_p > 0:
                self._noticed.add("dropout")
                dropout_p = 0.0 if NO_DROPOUT in self._wanted else dropout_p
            return original(query, key, value, attn_mask, dropout_p, *args, **kwargs)
        return call

    @contextlib.contextmanager
    def _seeds(self) -> Iterator[None]:
        """Every generator begins with the run's seed, and a script that sets a seed of its own sets this one."""
        def wrap(original: Any) -> Any:
            return lambda *_, **__: original(self._plan.seed)

        with contextlib.ExitStack() as stack:
            stack.enter_context(replaced(torch, "seed", lambda _: torch.initial_seed))
            stack.enter_context(replaced(torch, "Generator", lambda _: _generators_seeded(self._plan.seed)))
            stack.enter_context(replaced(np.random, "default_rng", wrap))
            for owner, name in ((torch, "manual_seed"), (torch.random, "manual_seed"), (random, "seed"),
                                (np.random, "seed")):
                getattr(owner, name)(self._plan.seed)
                stack.enter_context(replaced(owner, name, wrap))
            yield

    # At the calls of modules

    def at_first_call(self, module: nn.Module, models: Models) -> None:
        """A module of the script is called for the first time; its weights may be set, those used before are left."""
        if EQUAL_WEIGHTS in self._wanted and self._plan.reference is not None:
            known = load_file(tensor_file(Path(self._plan.reference), "initial"))
            self._set(module, models, lambda name, old: known[name].to(old) if name in known else old)
        if NUDGED in self._wanted:
            self._set(module, models, _nudged)

    def _set(self, module: nn.Module, models: Models, function: Callable[[str, torch.Tensor], torch.Tensor]) -> None:
        with torch.no_grad():
            for parameter in module.parameters():
                if parameter not in self._set_already:
                    self._set_already.add(parameter)
                    parameter.copy_(function(models.name_of(parameter), parameter))

    def at_call(self, module: nn.Module) -> None:
        if FROZEN_BATCHNORM in self._wanted:
            for layer in module.modules():
                if isinstance(layer, _BatchNorm) and layer.track_running_stats:
                    layer.training = False

    def inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The inputs of a call, in the precision of the experiment."""
        if FLOAT64 not in self._wanted:
            return args, kwargs

        def wide(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.double() if tensor.is_floating_point() else tensor

        return map_tensors(wide, args), map_tensors(wide, kwargs)


def _nudged(name: str, parameter: torch.Tensor) -> torch.Tensor:
    """Each number moved by one rounding, up or down: what it becomes of that is what rounding does to a training."""
    if not parameter.is_floating_point():
        return parameter
    generator = torch.Generator().manual_seed(int(seen.content(parameter)[:12], 16))
    signs = torch.randint(0, 2, parameter.shape, generator=generator).to(parameter) * 2 - 1
    return parameter * (1 + signs * torch.finfo(parameter.dtype).eps)


def _generators_seeded(seed: int) -> type[torch.Generator]:
    """A kind of generator that has one seed only."""
    class Seeded(torch.Generator):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().manual_seed(seed)

        def manual_seed(self, _: int) -> Any:
            return super().manual_seed(seed)

        def seed(self) -> int:
            super().manual_seed(seed)
            return seed

    return Seeded


def _samples_seeded(seed: int) -> AbstractContextManager[None]:
    """Before a sample of a map-style data set is read, the generators are seeded by its index."""
    from torch.utils.data._utils.fetch import _MapDatasetFetcher

    def wrap(original: Any) -> Any:
        def fetch(fetcher: Any, wanted: Any) -> Any:
            if not fetcher.auto_collation:
                return original(fetcher, wanted)
            states = random.getstate(), np.random.get_state(), torch.get_rng_state()
            samples = [_read(fetcher.dataset, index, seed) for index in wanted]
            random.setstate(states[0])
            np.random.set_state(states[1])
            torch.set_rng_state(states[2])
            return fetcher.collate_fn(samples)
        return fetch

    return replaced(_MapDatasetFetcher, "fetch", wrap)


def _read(dataset: Any, index: Any, seed: int) -> Any:
    key = hash((seed, index)) & 0xFFFFFFFF
    random.seed(key)
    np.random.seed(key)
    torch.default_generator.manual_seed(key)
    return dataset[index]
