"""Takes part in an examination as one of its ranks, whoever started it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import torch.distributed as dist

from rankwise.device import device_of, kind_of_device
from rankwise.doctor.finding import Finding
from rankwise.doctor.ranks import line
from rankwise.doctor.ranks.report import Report
from rankwise.doctor.ranks.steps import Steps
from rankwise.doctor.ranks.watcher import Watcher, noticed
from rankwise.errors import PeerError
from rankwise.world import World


def take_part(world: World, conclude: Callable[[list[Report]], int], ended: Callable[[int], int],
              tell: Callable[[str], None], *, accelerator: str, limit_seconds: float, findings: Sequence[Finding],
              own_words: Sequence[str]) -> int:
    """All steps of this rank, to the end of all; returns the exit code that all ranks end with.

    `conclude` is called on rank 0; `tell` is given each step of this rank. `findings` and `own_words` are of this
    rank's machine, and sent by one rank of it. Raises PeerError where the ranks' store is not there.
    """
    device = device_of(world, kind_of_device(accelerator))
    store = line.serve(world)   # where it is kept here, it lives as long as this name
    try:
        own, watchers = (line.Line(world, line.connect()) for _ in range(2))
    except ConnectionError as error:
        raise PeerError(f"Rank {world.rank} of {world.size} did not reach the store in which the ranks meet.",
                        f"{error}.", "See that rank 0 was started, and that this machine reaches its own.") from None
    with noticed() as notice:
        watcher = Watcher(watchers, notice, conclude, ended, limit_seconds=limit_seconds)
        watcher.start()
        steps = Steps(world, device, own, tell, lambda name: dist.PrefixStore(name, line.connect()),
                      limit_seconds=limit_seconds)
        steps.take()
        told = tuple(vars(each) for each in findings) if world.local_rank == 0 else ()
        with contextlib.suppress(ConnectionError):   # the watcher says that the store is lost
            own.report(steps.report(own_words=tuple(own_words), machine_findings=told))
        code = watcher.steps_are_over()
    del store
    return code
