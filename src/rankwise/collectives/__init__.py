"""`--debug`: the collectives of a training, compared over its ranks before they run.

torch's own collectives are wrapped, so that a script is seen whether it knows rankwise or not. The reductions that
DistributedDataParallel begins in C++ are seen where they begin: at its construction, in its forward where buffers are
broadcast, and in the backward that averages gradients.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import distributed_c10d
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from rankwise.collectives.calls import COMPARED, Call, call_of, place, signature
from rankwise.collectives.conversation import Conversation

_SETTLE_SECONDS = 0.1   # a thread of gloo may still let go of its last tensor; the group's end may wait for it for ever

_active: Watch | None = None


@contextlib.contextmanager
def compared(limit_seconds: float) -> Iterator[None]:
    """Within this block each collective of this process is compared with those of the other ranks before it runs.

    All ranks must be in such a block. A collective raises MisuseError where the ranks' calls do not fit together, and
    PeerError where a rank does not come within `limit_seconds` or has ended. Within another such block it does nothing.
    """
    global _active
    if _active is not None:
        yield
        return
    _active = Watch(limit_seconds)
    with _active.installed():
        try:
            yield
            _active.ended("its script ended")
        except BaseException as error:
            _active.ended(f"it ended with {type(error).__name__}")
            raise
        finally:
            _active = None


class Watch:
    """Stands in front of torch's collectives and keeps a conversation for each process group."""

    def __init__(self, limit_seconds: float) -> None:
        self._limit_seconds = limit_seconds
        self._conversations: weakref.WeakKeyDictionary[dist.ProcessGroup, Conversation] = weakref.WeakKeyDictionary()
        self._store: dist.Store | None = None   # of the default group, which may be another one later
        self._numbers = itertools.count()
        self._default: weakref.ref[dist.ProcessGroup] | None = None
        self._here = threading.local()
        self._joined = 0

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Replace what is watched, and put it back."""
        replaced: list[tuple[Any, str, Any]] = []

        def replace(holder: Any, name: str, new: Any) -> None:
            replaced.append((holder, name, getattr(holder, name)))
            setattr(holder, name, new)

        for name in COMPARED:
            if hasattr(dist, name):
                new = self._in_front_of(name, getattr(dist, name))
                replace(dist, name, new)
                replace(distributed_c10d, name, new)
        leaving = self._leaving(dist.destroy_process_group)
        replace(dist, "destroy_process_group", leaving)
        replace(distributed_c10d, "destroy_process_group", leaving)
        replace(DistributedDataParallel, "__init__", self._building(DistributedDataParallel.__init__))
        replace(dist.Reducer, "prepare_for_backward", self._reducing(dist.Reducer.prepare_for_backward))
        replace(Join, "__enter__", self._joining(Join.__enter__, 1))
        replace(Join, "__exit__", self._joining(Join.__exit__, -1))
        hooks = [nn.modules.module.register_module_forward_pre_hook(self._before_forward),
                 nn.modules.module.register_module_forward_hook(self._after_forward)]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
            for holder, name, old in reversed(replaced):
                setattr(holder, name, old)

    def ended(self, how: str) -> None:
        """Tell ranks that wait for this one that it will not come."""
        if self._store is not None:
            with contextlib.suppress(RuntimeError):   # its process may have ended first
                self._store.set(f"ended/{self._rank}", how)
            self._store = None

    # Comparing

    def _compare(self, group: Any, call: Callable[[dist.ProcessGroup], Call]) -> None:
        """Compare one call, unless it is part of another, or no call of a group with several ranks."""
        if getattr(self._here, "inside", False) or self._joined or not dist.is_initialized():
            return
        group = dist.group.WORLD if group is None else group
        if isinstance(group, dist.ProcessGroup) and group.size() > 1:
            self._conversation(group).compare(call(group))

    def _conversation(self, group: dist.ProcessGroup) -> Conversation:
        default = dist.group.WORLD
        assert default is not None
        if self._default is None or self._default() is not default:
            self._default, self._rank = weakref.ref(default), dist.get_rank()
            prefix = f"rankwise/collectives/{next(self._numbers)}"
            self._store = dist.PrefixStore(prefix, distributed_c10d._get_default_store())
        if group not in self._conversations:
            assert self._store is not None
            name = "default" if group is default else f"group/{group.group_name}"
            self._conversations[group] = Conversation(self._store, name, dist.get_process_group_ranks(group),
                                                      self._rank, self._limit_seconds)
        return self._conversations[group]

    @contextlib.contextmanager
    def _inside(self) -> Iterator[None]:
        """What is called within is part of a call that was compared."""
        before = getattr(self._here, "inside", False)
        self._here.inside = True
        try:
            yield
        finally:
            self._here.inside = before

    # What stands in front of what

    def _in_front_of(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def collective(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return original(*args, **kwargs)
            try:
                given = signature(original).bind(*args, **kwargs).arguments
            except TypeError:
                return original(*args, **kwargs)   # says itself what is wrong
            if not given.get("use_local_synchronization"):   # else not all ranks make the new group
                self._compare(given.get("group"), lambda group: call_of(name, original, args, kwargs, group))
            with self._inside():
                return original(*args, **kwargs)
        return collective

    def _leaving(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def destroy_process_group(group: dist.ProcessGroup | None = None) -> None:
            if dist.is_initialized() and group in (None, dist.group.WORLD):
                where = (place() or ("",))[0]
                self.ended("it left the process group" + f" at {where}" * bool(where))
                time.sleep(_SETTLE_SECONDS)
            original(group)
        return destroy_process_group

    def _building(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def __init__(module: Any, *args: Any, **kwargs: Any) -> None:   # noqa: N807
            given = signature(original).bind(module, *args, **kwargs).arguments
            sizes = [parameter.numel() for parameter in given["module"].parameters() if parameter.requires_grad]
            what = f"DistributedDataParallel(...) of {len(sizes)} parameters with {sum(sizes)} values"
            self._compare(given.get("process_group"), lambda group: Call(what, place()))
            with self._inside():
                original(module, *args, **kwargs)
        return __init__

    def _reducing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A reduction that is begun by hand. DistributedDataParallel's forward begins one for a backward to come."""
        @functools.wraps(original)
        def prepare_for_backward(reducer: dist.Reducer, outputs: Any) -> Any:
            caller = sys._getframe(1)
            if caller.f_globals.get("__name__") != DistributedDataParallel.__module__:
                self._compare(None, lambda group: Call("the averaging of gradients in backward", place()))
            return original(reducer, outputs)
        return prepare_for_backward

    def _before_forward(self, module: nn.Module, inputs: Any) -> None:
        if isinstance(module, DistributedDataParallel) and module.will_sync_module_buffers():   # type: ignore[no-untyped-call]
            count = len(module.modules_buffers)
            self._compare(module.process_group, lambda group: Call(
                f"the forward of DistributedDataParallel, which broadcasts {count} buffers", place()))

    def _after_forward(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        if not isinstance(module, DistributedDataParallel) or torch.compiler.is_compiling():
            return
        if not (torch.is_grad_enabled() and module.require_backward_grad_sync):
            return
        call = Call("the backward of DistributedDataParallel, which averages gradients, after its forward", place())
        begun: list[bool] = []

        def backward(gradient: torch.Tensor) -> None:
            if not begun:   # once for all outputs
                begun.append(True)
                self._compare(module.process_group, lambda group: call)

        for output in nn.parallel.distributed._find_tensors(outputs):   # type: ignore[no-untyped-call]
            if output.requires_grad:
                output.register_hook(backward)

    def _joining(self, original: Callable[..., Any], change: int) -> Callable[..., Any]:
        """Within torch's Join, ranks that are out of data answer in the place of others: nothing is compared."""
        @functools.wraps(original)
        def change_and_go(join: Any, *exception: Any) -> Any:
            if change > 0:
                self._joined += 1
            try:
                return original(join, *exception)
            finally:
                if change < 0:
                    self._joined -= 1
        return change_and_go
