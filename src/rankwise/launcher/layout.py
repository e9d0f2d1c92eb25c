"""How many ranks a machine gets, and what surroundings they find."""

from __future__ import annotations

import sys
from pathlib import Path

from rankwise import environment
from rankwise.errors import UsageError
from rankwise.modes import MODES, resolve
from rankwise.processor import cores
from rankwise.settings import Settings
from rankwise.world import World


def with_devices(settings: Settings) -> Settings:
    """The settings with `devices` decided: what was asked for, else one; for modes dp and ddp all accelerators here.

    Raises UsageError for more accelerators than are here, and for what the mode cannot be spread over.
    """
    from rankwise.device import count, kind_of_device
    kind = kind_of_device(settings.accelerator)
    present = count(kind)
    devices = settings.devices or (present if settings.mode in ("dp", "ddp") and present else 1)
    _require(devices, kind, f"--devices is {devices}.")
    if settings.mode in ("single", "dp") and settings.node_range[1] > 1:
        raise UsageError(f"--mode is {settings.mode} with --nodes {settings.nodes}.",
                         "This mode is one process on one machine.", "Give --mode ddp, or leave --mode out.")
    settings = settings.having(devices=devices)
    resolve(settings)
    return settings


def require_device(settings: Settings, world: World) -> None:
    """Raise UsageError where another launcher put more ranks on this machine than it has accelerators."""
    from rankwise.device import kind_of_device
    if world.local_size > 1:
        _require(world.local_size, kind_of_device(settings.accelerator),
                 f"The launcher started {world.local_size} ranks on this machine.")


def _require(devices: int, kind: str, given: str) -> None:
    from rankwise.device import count
    present = count(kind)
    if present is not None and devices > present:
        raise UsageError(given, f"It has {present} {kind} device{'s' * (present != 1)}, one for each rank.",
                         f"Take {present} or fewer, or --accelerator cpu, where any number will do.")


def is_one_process(settings: Settings) -> bool:
    """Whether this process can be the only rank, which nobody starts again; `devices` is decided."""
    return settings.node_range[1] == 1 and _processes(settings) == 1 and settings.max_restarts == 0


def _processes(settings: Settings) -> int:
    return MODES[resolve(settings)].processes(settings.devices or 1)


def ranks_here(settings: Settings) -> int:
    """Processes that this machine starts; `devices` is decided. Says in one line where a CPU has too few cores."""
    ranks = _processes(settings)
    if ranks > cores() and not _on_accelerators(settings):
        print(f"rankwise: {ranks} ranks share the {cores()} cores of this machine, and take turns.", file=sys.stderr)
    return ranks


def surroundings(settings: Settings, ranks: int, run_folder: Path) -> dict[str, str]:
    """Variables that ranks of this machine find; what the user has set is left alone."""
    found = {environment.SETTINGS: settings.to_json(), environment.RUN_FOLDER: str(run_folder.resolve())}
    if settings.threads is not None:
        found["OMP_NUM_THREADS"] = str(settings.threads)
    elif environment.lacks("OMP_NUM_THREADS"):
        found["OMP_NUM_THREADS"] = str(max(1, cores() // ranks))
    if environment.lacks("GLOO_SOCKET_IFNAME"):
        interface = _interface(settings)
        if interface is not None:
            found["GLOO_SOCKET_IFNAME"] = interface
    return found


def _interface(settings: Settings) -> str | None:
    from rankwise.launcher.rendezvous import interface_towards, parse_endpoint
    return interface_towards("127.0.0.1" if settings.node_range[1] == 1 else parse_endpoint(settings.endpoint)[0])


def _on_accelerators(settings: Settings) -> bool:
    from rankwise.device import kind_of_device
    return kind_of_device(settings.accelerator) != "cpu"
