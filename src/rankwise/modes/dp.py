"""Mode dp: one process cuts each forward into chunks and computes them on its devices, in threads.

It is the scheme of torch's nn.DataParallel: replicas are made for each forward, the outputs are put together on the
first device, and one backward adds all gradients up in the one set of parameters. On CUDA torch replicates; on a CPU,
where nn.DataParallel does nothing, replicas share the parameters. Replica 0 is the module itself, so its buffers and
attributes persist, and those of the others are dropped. The threads draw random numbers from one generator, in no
fixed order.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, cast

import torch
from torch import nn
from torch.nn.parallel import replicate

from rankwise.errors import MisuseError
from rankwise.group import Group
from rankwise.ledger import Ledger
from rankwise.modes.batchnorm import spread_batchnorm
from rankwise.modes.chunks import Inputs, cut, join
from rankwise.modes.inplace import InPlace, put_in_front
from rankwise.modes.norows import StandIn
from rankwise.modes.notices import layout_notices
from rankwise.modes.options import PrepareOptions
from rankwise.modes.single import Single
from rankwise.structure import map_tensors

ModuleT = TypeVar("ModuleT", bound=nn.Module)


class DP(Single):
    """One rank that drives `devices` devices."""

    name = "dp"

    def __init__(self, *, group: Group, devices: int = 1, amp: str = "no") -> None:
        super().__init__(group=group, devices=devices, amp=amp)
        self.replicas = devices
        kind = group.device.type
        self._devices = Devices([torch.device(kind, index) if kind == "cuda" else group.device
                                 for index in range(devices)], group.ledger)
        self._told = False

    def _replicate(self, module: nn.Module, options: PrepareOptions) -> None:
        if self.replicas == 1:
            return
        if options.sync_batchnorm:
            raise MisuseError("run.prepare was given sync_batchnorm=True in mode dp.",
                              "The threads of dp each normalise their own chunk.",
                              "Use --mode ddp or --mode single, or leave sync_batchnorm out.")
        spread_batchnorm(module, self._group, StandIn(), synchronised=False)
        put_in_front(Chunked, module, _devices=self._devices)

    def notices(self, module: nn.Module, **options: Any) -> list[str]:
        if self.replicas == 1:
            return []
        first = [] if self._told else ["Mode dp is there to compare with and to debug: ddp computes the same, faster."]
        self._told = True
        return first + layout_notices(module, synchronised=False)

    def close(self) -> None:
        self._devices.close()
        super().close()


class Devices:
    """The devices of one process, and a thread for each but the first, which the calling thread serves."""

    def __init__(self, devices: list[torch.device], ledger: Ledger) -> None:
        self.all, self.ledger = devices, ledger
        self._threads = ThreadPoolExecutor(max(1, len(devices) - 1), thread_name_prefix="rankwise-dp")

    def run(self, tasks: list[Callable[[], Any]]) -> list[Any]:
        """The results of `tasks`, one for each device, with the caller's gradient mode and autocast."""
        within = _carried(self.all[0].type)
        later = [self._threads.submit(within, task, device)
                 for task, device in zip(tasks[1:], self.all[1:], strict=False)]
        try:
            first = tasks[0]()
        finally:
            results = [(future.exception(), future) for future in later]   # no thread outlives the forward
        for error, _ in results:
            if error is not None:
                raise error
        return [first, *(future.result() for _, future in results)]

    def close(self) -> None:
        """End the threads; a forward computes in one chunk from here on."""
        self._threads.shutdown()
        del self.all[1:]


def _carried(kind: str) -> Callable[[Callable[[], Any], torch.device], Any]:
    """Runs a task with the gradient mode and autocast of the thread that called this, which other threads lack."""
    graded, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    enabled, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)

    def within(task: Callable[[], Any], device: torch.device) -> Any:
        on_device = torch.cuda.device(device) if kind == "cuda" else contextlib.nullcontext()
        with (on_device, torch.inference_mode(inference), torch.set_grad_enabled(graded),
              torch.autocast(kind, dtype=dtype, enabled=enabled)):
            return task()
    return within


class Chunked(InPlace):
    """A module whose forward is computed in chunks, one on each device."""

    _devices: Devices

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        devices = self._devices
        ledger = devices.ledger
        with ledger.communicating():
            chunks, rows = cut((args, kwargs), len(devices.all))
            copies = self._copies(len(chunks)) if len(chunks) > 1 else []
        if not copies:
            return super().forward(*args, **kwargs)
        outputs = devices.run([self._task(f"Chunk {part + 1} of {len(chunks)}", copies[part], chunks[part],
                                          devices.all[part]) for part in range(len(chunks))])
        with ledger.communicating():
            return join(outputs, rows)

    def _copies(self, count: int) -> list[Chunked]:
        """The module itself, and replicas for the other devices."""
        if self._devices.all[0].type == "cpu":
            return [self, *(_sharing(self, {}) for _ in range(count - 1))]
        replicas: Any = replicate(self, self._devices.all[:count], detach=not torch.is_grad_enabled())
        return [self, *replicas[1:]]

    def _task(self, name: str, replica: Chunked, chunk: Inputs, device: torch.device) -> Callable[[], Any]:
        forward = super(Chunked, replica).forward

        def placed(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(device) if tensor.device.type == device.type else tensor   # lengths stay on the CPU

        def task() -> Any:
            try:
                args, kwargs = map_tensors(placed, chunk)
                return forward(*args, **kwargs)
            except Exception as error:
                raise RuntimeError(f"{name} failed in the forward of {type(self).__name__}: {error}") from error
        return task


def _sharing(module: ModuleT, known: dict[nn.Module, Any]) -> ModuleT:
    """A replica that has the same parameters and buffers of its own; `known` holds what was replicated already."""
    if module in known:
        return cast("ModuleT", known[module])
    replica = known[module] = module.__new__(type(module))
    replica.__dict__ = module.__dict__.copy()
    replica._buffers = {name: None if buffer is None else buffer.clone() for name, buffer in module._buffers.items()}
    replica._modules = {name: None if child is None else _sharing(child, known)
                        for name, child in module._modules.items()}
    return replica
