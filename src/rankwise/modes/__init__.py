"""The modes: which there are, which one `auto` means, and what each of them does for a run.

A mode is a layout of replicas. Naming and choosing one needs no torch; opening one imports its module.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from rankwise.errors import UsageError
from rankwise.settings import Settings
from rankwise.world import World

if TYPE_CHECKING:
    import torch
    from torch import nn

    from rankwise.group import Group
    from rankwise.microbatch import MicroBatch

    ModuleT = TypeVar("ModuleT", bound=nn.Module)


@dataclass(frozen=True, kw_only=True)
class Description:
    """What a mode is, in a line; how many processes it takes on one machine; and where its code is.

    `communication` says what of a step counts as communication in this mode; nothing where there is none.
    """

    meaning: str
    communication: str
    processes: Callable[[int], int]
    module: str
    factory: str


MODES = {
    "single": Description(meaning="one process, one device", communication="", processes=lambda devices: 1,
                          module="rankwise.modes.single", factory="Single"),
    "dp": Description(meaning="one process, a replica on each device in threads; to compare with and to debug",
                      communication="scatter, replicate and gather of the forward",
                      processes=lambda devices: 1, module="rankwise.modes.dp", factory="DP"),
    "ddp": Description(meaning="a process for each device, gradients averaged during backward",
                       communication="all-reduce of gradients", processes=lambda devices: devices,
                       module="rankwise.modes.ddp", factory="DDP"),
}


class Mode(Protocol):
    """What a run asks of a mode, in the order in which a training needs it."""

    name: str
    replicas: int
    """Devices that one rank drives: a rank's micro-batch holds this many times `micro_batch` rows."""
    averaged_over: int
    """Ranks over which gradients are averaged; 1 where they are added up."""

    def prepare(self, module: ModuleT, **options: Any) -> ModuleT:
        """Place and replicate `module`, in place; its weights are equal on all ranks from here on.

        Raises MisuseError for an option that does not exist or does not work in this mode, and where the ranks built
        different modules.
        """
        ...

    def notices(self, module: nn.Module, **options: Any) -> list[str]:
        """What the user should know of this module in this mode, a line each: what depends on the layout."""
        ...

    def expect(self, micro_batch: MicroBatch) -> None:
        """A training body is about to run with this micro-batch."""
        ...

    def reducing(self, loss: torch.Tensor, micro_batch: MicroBatch, amount: torch.Tensor | None = None, *,
                 update_follows: bool = False) -> AbstractContextManager[None]:
        """The context of a backward pass from `loss`: with the last micro-batch, gradients are averaged in it.

        `amount` is given where the loss may have none: a 0-dim tensor, 0 where its gradient must be zero.
        `update_follows` is for a loss that is known to be the last before the update.
        """
        ...

    def complete(self, *, is_last: bool) -> list[str]:
        """The backward passes of this micro-batch are done; with the last one an update follows.

        Returns lines for the user.
        """
        ...

    def after_update(self) -> None:
        """The weights were updated: make buffers equal on all ranks."""
        ...

    def require_known_parameters(self, optimizers: list[torch.optim.Optimizer]) -> None:
        """Raise MisuseError where an optimizer holds a parameter whose gradient no prepared module reduces."""
        ...

    def layout(self) -> dict[str, Any]:
        """What in the order of sums the numbers depend on, for the checkpoint; plain JSON values."""
        ...

    def resumed(self, layout: Mapping[str, Any]) -> list[str]:
        """The run goes on from a checkpoint of this layout. Returns lines for the user."""
        ...

    def close(self) -> None:
        """Let go of the replicas, before the group closes; the modules stay usable."""
        ...


def resolve(settings: Settings, world: World | None = None) -> str:
    """The mode that `settings` mean for these processes: `auto` is single on one device and ddp on more.

    Raises UsageError where the mode asked for does not fit the devices or the processes of a launcher.
    """
    processes = world.size if world is not None else 1
    devices = settings.devices or 1
    if settings.exact is not None:
        _require_exact(settings, settings.exact, max(processes, devices * settings.node_range[1]))
    if settings.mode == "auto":
        return "ddp" if max(processes, devices) > 1 else "single"
    if settings.mode == "single" and devices > 1:
        raise UsageError(f"--mode is single and --devices is {devices}.", "Mode single computes on one device.",
                         "Give --mode ddp, or leave --devices out.")
    if settings.mode in ("single", "dp") and processes > 1:
        raise UsageError(f"--mode is {settings.mode} and the launcher started {processes} processes.",
                         f"Mode {settings.mode} runs in one process.",
                         "Give --mode ddp, or start the script without a launcher.")
    return settings.mode


def _require_exact(settings: Settings, shards: int, ranks: int) -> None:
    if settings.mode == "dp":
        raise UsageError(f"--exact is {shards} and --mode is dp.",
                         "The threads of dp add gradients up in no fixed order.", "Give --mode ddp or --mode single.")
    if shards < ranks:
        raise UsageError(f"--exact is {shards} and {ranks} ranks take part.",
                         "A rank computes at least one of the virtual shards.",
                         f"Give --exact {ranks} or more, or fewer devices.")


def open_mode(name: str, *, group: Group, devices: int, amp: str, exact: int | None = None) -> Mode:
    """The mode `name` over the ranks of `group`; `devices` counts those of one machine (dp drives all of them).

    `exact` is the number of virtual shards in exact mode.
    """
    if exact is not None:
        from rankwise.modes.exact import Exact
        return Exact(group=group, shards=exact, name=name, amp=amp)
    description = MODES[name]
    factory = getattr(importlib.import_module(description.module), description.factory)
    return cast("Mode", factory(group=group, devices=devices, amp=amp))
