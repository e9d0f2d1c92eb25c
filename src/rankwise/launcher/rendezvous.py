"""Where the launchers of a run meet: on loopback for one machine, at the endpoint for several."""

from __future__ import annotations

import socket
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

from rankwise.errors import PeerError, UsageError
from rankwise.settings import Settings
from rankwise.sidechannel import SideChannel
from rankwise.world import World

_FOLDER = "rankwise/run_folder"


class Rendezvous(RendezvousHandler):
    """A fixed set of machines, each with its number, so that no host name decides who is first.

    `run_folder` is what machine 0 chose, on each machine; `attempt` counts from 0, and `line` is that of its ranks
    beside their training. Every attempt has a store of its own: gloo leaves addresses in it that a later attempt would
    take for its own.
    """

    def __init__(self, settings: Settings, run_folder: Path) -> None:
        self.run_folder = run_folder
        self._settings = settings
        self.attempt = -1
        self.line: SideChannel | None = None
        self._store: dist.Store | None = None

    @property
    def use_agent_store(self) -> bool:
        """The ranks meet in this store too, as clients."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        nodes = self._settings.node_range[1]
        store, host, port = _on_loopback() if nodes == 1 else self._at_endpoint()
        self.attempt += 1
        self.line = SideChannel.over(store, self.attempt, World())
        return RendezvousInfo(dist.PrefixStore(f"agents/{self.attempt}", store), self._settings.node_rank, nodes,
                              RendezvousStoreInfo(host, port))

    def _at_endpoint(self) -> tuple[dist.Store, str, int]:
        host, port = parse_endpoint(self._settings.endpoint)
        first = self._settings.node_rank == 0
        limit = self._settings.timeout
        try:
            if self._store is None:
                self._store = dist.TCPStore(host, port, self._settings.node_range[1], first, timedelta(seconds=limit),
                                       multi_tenant=True)
            if first:
                self._store.set(_FOLDER, self.run_folder.name)
            self.run_folder = Path(self._settings.runs) / self._store.get(_FOLDER).decode()
        except (dist.DistError, OSError) as error:
            raise PeerError(f"Machine {self._settings.node_rank} did not meet the other "
                            f"{self._settings.node_range[1] - 1} at {host}:{port} within {limit:.0f} s.",
                            str(error).strip().splitlines()[0][:300],
                            "Start `rankwise run` on every machine with the same --nodes and --endpoint, each with its "
                            "own --node-rank. The endpoint is an address of machine 0 that the others reach, with a "
                            "free port.") from error
        return self._store, host, port

    def get_backend(self) -> str:
        return "rankwise"

    def get_run_id(self) -> str:
        return self.run_folder.name

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        """Nothing to mark: the set of machines is fixed."""

    def num_nodes_waiting(self) -> int:
        return 0

    def shutdown(self) -> bool:
        self._store = None
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
