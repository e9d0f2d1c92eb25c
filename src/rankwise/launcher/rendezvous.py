"""Where the launchers of a run meet: on loopback for one machine, at the endpoint for several."""

from __future__ import annotations

import socket
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

from rankwise.errors import UsageError
from rankwise.launcher.gathering import Gathering
from rankwise.settings import Settings
from rankwise.sidechannel import SideChannel
from rankwise.world import World


class Rendezvous(RendezvousHandler):
    """Brings the machines of an attempt together; each has its number, so that no host name decides who is first.

    `run_folder` is what machine 0 chose, on each machine; `attempt` counts from 0. `line` is that of the ranks beside
    their training, where their store lies on this machine. Every attempt has a store of its own: gloo leaves addresses
    in it that a later attempt would take for its own.
    """

    def __init__(self, settings: Settings, run_folder: Path) -> None:
        self.run_folder = run_folder
        self.attempt = -1
        self.line: SideChannel | None = None
        self._settings = settings
        self._gathering: Gathering | None = None
        if settings.node_range[1] > 1:
            self._gathering = Gathering(settings, *parse_endpoint(settings.endpoint), run_folder.name)

    @property
    def use_agent_store(self) -> bool:
        """The ranks meet in this store too, as clients."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        if self._gathering is None:
            self.attempt += 1
            store, host, port = _on_loopback()
            rank, machines = 0, 1
        else:
            found = self._gathering.next_round()
            self.run_folder = Path(self._settings.runs) / self._gathering.folder()
            self.attempt = found.number
            host, port = parse_endpoint(self._settings.endpoint)[0], found.port
            store = dist.TCPStore(host, port, is_master=False, timeout=timedelta(seconds=self._settings.timeout),
                                  wait_for_workers=False)
            rank, machines = found.machines.index(self._settings.node_rank), len(found.machines)
        self.line = SideChannel.over(store, self.attempt, World()) if rank == 0 else None
        return RendezvousInfo(dist.PrefixStore(f"agents/{self.attempt}", store), rank, machines,
                              RendezvousStoreInfo(host, port))

    def leave(self, problem: str) -> None:
        """This machine ends; those that wait for it are told why."""
        if self._gathering is not None:
            self._gathering.leave(problem)

    def get_backend(self) -> str:
        return "rankwise"

    def get_run_id(self) -> str:
        return self.run_folder.name

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        """Nothing to mark: `leave` says it."""

    def num_nodes_waiting(self) -> int:
        return self._gathering.waiting() if self._gathering is not None else 0

    def shutdown(self) -> bool:
        return True


def _on_loopback() -> tuple[dist.Store, str, int]:
    """A store on a port that the system chose and that nobody else can take in between."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    host, port = listener.getsockname()
    # torch's other store server takes no socket that listens already in its older releases (2.7).
    return dist.TCPStore(host, port, 1, True, master_listen_fd=listener.detach(), use_libuv=False), host, port


def parse_endpoint(endpoint: str | None) -> tuple[str, int]:
    """HOST and PORT of `HOST:PORT`. Raises UsageError for anything else, and where HOST has no address."""
    host, _, port = (endpoint or "").rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(f"--endpoint is {endpoint}.", "It is HOST:PORT of machine 0.",
                         "Give --endpoint 10.0.0.1:29500, for example.")
    host = host.strip("[]")
    try:
        socket.getaddrinfo(host, int(port))
    except OSError as error:
        raise UsageError(f"--endpoint is {endpoint}.", f"{host} has no address here: {error.strerror or error}.",
                         "Check the name, or give the address of machine 0.") from None
    return host, int(port)


def interface_towards(host: str) -> str | None:
    """The network interface through which this machine reaches `host`; None where it cannot be told.

    Left to itself gloo takes the address of the machine's own name, which is often 127.0.1.1 and reaches nobody.
    """
    import psutil
    family, kind, _, _, address = socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        try:
            probe.connect(address)   # a datagram socket: nothing is sent
        except OSError:
            return None
        mine = probe.getsockname()[0]
    return next((name for name, addresses in psutil.net_if_addrs().items()
                 if any(each.address.partition("%")[0] == mine for each in addresses)), None)
