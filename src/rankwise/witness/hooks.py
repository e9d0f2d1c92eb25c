"""Where the witness stands: between a script and the few functions of torch that every training passes through."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim import optimizer as optimizers
from torch.optim.lr_scheduler import ReduceLROnPlateau


class Observer(Protocol):
    """Whoever wants to know."""

    def before_forward(self, module: nn.Module, args: tuple[Any, ...],
                       kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]: ...
    def before_backward(self, outputs: Any, seeds: Any) -> None: ...
    def before_step(self, optimizer: torch.optim.Optimizer) -> None: ...
    def after_step(self, optimizer: torch.optim.Optimizer) -> None: ...
    def clipped(self, total_norm: Any, max_norm: Any) -> None: ...
    def plateau(self, number: Any) -> None: ...


@contextlib.contextmanager
def listening(observer: Observer) -> Iterator[None]:
    """A block in which `observer` is told."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(_calls(observer))
        stack.enter_context(_before(torch.autograd, "backward", lambda tensors, grad_tensors=None, *_, **__:
                                    observer.before_backward(tensors, grad_tensors)))
        stack.enter_context(_before(ReduceLROnPlateau, "step", lambda self, metrics, *_, **__:
                                    observer.plateau(metrics)))
        stack.enter_context(_clipping(observer))
        for hook in (optimizers.register_optimizer_step_pre_hook(lambda each, *_: observer.before_step(each)),
                     optimizers.register_optimizer_step_post_hook(lambda each, *_: observer.after_step(each))):
            stack.callback(hook.remove)
        yield


@contextlib.contextmanager
def replaced(owner: Any, name: str, wrap: Callable[[Any], Any]) -> Iterator[None]:
    """A block in which the function `owner.name` is `wrap` of it."""
    original = getattr(owner, name)
    new = wrap(original)
    setattr(owner, name, new if isinstance(new, type) else functools.wraps(original)(new))
    try:
        yield
    finally:
        setattr(owner, name, original)


def _before(owner: Any, name: str, tell: Callable[..., None]) -> AbstractContextManager[None]:
    def wrap(original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            tell(*args, **kwargs)
            return original(*args, **kwargs)
        return call
    return replaced(owner, name, wrap)


def _calls(observer: Observer) -> AbstractContextManager[None]:
    """Calls of a module from the script, not those within another module, in a backward pass or by another thread.

    torch's own global hooks do not see keyword arguments, and are not called where a forward raises.
    """
    main, inside = threading.main_thread(), False

    def wrap(original: Any) -> Any:
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            nonlocal inside
            if torch.compiler.is_compiling() or inside or threading.current_thread() is not main or (
                    torch._C._current_graph_task_id() != -1):
                return original(module, *args, **kwargs)
            inside = True
            try:
                args, kwargs = observer.before_forward(module, args, kwargs)
                return original(module, *args, **kwargs)
            finally:
                inside = False
        return call

    return replaced(nn.Module, "__call__", wrap)


@contextlib.contextmanager
def _clipping(observer: Observer) -> Iterator[None]:
    def wrap(original: Any) -> Any:
        def call(parameters: Any, max_norm: Any, *args: Any, **kwargs: Any) -> Any:
            total = original(parameters, max_norm, *args, **kwargs)
            observer.clipped(total, max_norm)
            return total
        return call

    with replaced(torch.nn.utils, "clip_grad_norm_", wrap), replaced(torch.nn.utils.clip_grad, "clip_grad_norm_", wrap):
        yield

