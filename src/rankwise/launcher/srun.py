"""Started by Slurm's srun: a task a machine is a launcher, a task a device a rank; each finds its place in the step."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterator, Mapping
from datetime import timedelta
from typing import Any

from rankwise import environment
from rankwise.errors import UsageError

_LEFT = "rankwise/left"   # how many ranks need the store no more
_FAREWELL = timedelta(seconds=3)
_POLL_SECONDS = 0.02

def placed(settings: Mapping[str, Any], given: Collection[str]) -> dict[str, Any]:
    """The settings of a launcher; number of machines, number of this one and endpoint are the step's unless `given`.

    Raises UsageError where srun has started several launchers on a machine.
    """
    step, places = environment.step(), ("nodes", "node_rank", "endpoint")
    if step is None or set(places) <= set(given) or ("nodes" in given and settings["nodes"] in (1, "1")):
        return dict(settings)
    if not step.is_a_task_a_node:
        raise UsageError(f"srun has started {step.tasks} tasks on {step.nodes} machine{'s' * (step.nodes > 1)}.",
                         "Each of them would start the ranks of a machine.",
                         "Give srun --ntasks-per-node=1 (and --devices here); or let each task be a rank: "
                         "srun python train.py")
    found = {"nodes": str(step.nodes), "node_rank": step.node, "endpoint": f"{step.host}:{step.port}"}
    return {**settings, **{name: value for name, value in found.items() if name not in given}}


@contextlib.contextmanager
def meeting() -> Iterator[None]:
    """Within this block a rank that srun has started finds what it would under torchrun, a store that is served too.

    Others see no change. Raises UsageError where machine 0 has no address, or the port of the step is taken there.
    """
    variables = environment.meeting_place()
    if not variables:
        yield
        return
    from rankwise.launcher.rendezvous import interface_towards, parse_endpoint
    host, port = parse_endpoint(f"{variables['MASTER_ADDR']}:{variables['MASTER_PORT']}")
    interface = interface_towards(host) if environment.lacks("GLOO_SOCKET_IFNAME") else None
    gloo = {"GLOO_SOCKET_IFNAME": interface} if interface else {}
    with (_served(host, port, rank=int(variables["RANK"]), ranks=int(variables["WORLD_SIZE"])),
          environment.changed({**variables, **environment.SERVED, **gloo})):   # afterwards: torch ignores a taken port
        yield


@contextlib.contextmanager
def _served(host: str, port: int, *, rank: int, ranks: int) -> Iterator[None]:
    """Rank 0 keeps the store, until all have left it: their threads beside the training look into it to the end."""
    from torch.distributed import TCPStore
    try:
        kept = TCPStore(host, port, is_master=True, wait_for_workers=False) if rank == 0 else None
    except RuntimeError as error:
        raise UsageError(f"The ranks are to meet at port {port} of {host}.",
                         f"It cannot be opened there: {str(error).splitlines()[0]}",
                         "Set MASTER_PORT to a free port for all tasks: MASTER_PORT=29500 srun ...") from None
    try:
        yield
    finally:
        with contextlib.suppress(RuntimeError):   # it has gone with rank 0
            store = kept or TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=_FAREWELL)
            store.add(_LEFT, 1)
            deadline = time.monotonic() + _FAREWELL.total_seconds()
            while kept is not None and kept.add(_LEFT, 0) < ranks and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
