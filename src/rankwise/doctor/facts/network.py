"""The network as ranks meet it: this machine's name, its interfaces, the ports that are taken, and proxies."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from rankwise import environment

_CLASS = Path("/sys/class/net")
_CONNECT_SECONDS = 3.0
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")


@dataclass(frozen=True, kw_only=True)
class Interface:
    """One network interface; `speed_bytes_per_second` is the nominal rate, None where the system does not tell."""

    name: str
    addresses: tuple[str, ...]
    is_up: bool
    is_loopback: bool
    is_virtual: bool              # a bridge, or one end of a pair: no card stands behind it
    speed_bytes_per_second: float | None


@dataclass(frozen=True, kw_only=True)
class Port:
    """A port that ranks are to meet at: who listens there already, None where it is free."""

    number: int
    meant_by: str                 # MASTER_PORT, --endpoint
    owner: str | None


@dataclass(frozen=True, kw_only=True)
class Network:
    """What this machine says of its network. `towards_endpoint` is the interface on the way to machine 0."""

    name: str
    name_addresses: tuple[str, ...]   # what the own name resolves to
    name_is_bindable: bool            # whether one of them is an address of this machine
    name_problem: str
    interfaces: tuple[Interface, ...]
    towards_endpoint: str | None
    endpoint_host: str | None
    endpoint_problem: str
    default_route: str | None         # the interface on the way to everywhere else
    loopback_problem: str             # why a connection to 127.0.0.1 failed; empty where it did not
    ports: tuple[Port, ...]
    proxies: tuple[str, ...]          # names of the variables that are set, never what they hold
    no_proxy: str

    @property
    def endpoint_is_loopback(self) -> bool:
        """Several machines that are all this one, as in a test: loopback is their network."""
        host = self.endpoint_host or ""
        return host in ("localhost", "::1") or re.fullmatch(r"127(\.\d+){3}", host) is not None


def read(endpoint: str | None = None, node_rank: int = 0) -> Network:
    """Ask the resolver, the kernel, and 127.0.0.1. Nothing is sent to another machine but by the resolver."""
    name = socket.gethostname()
    addresses, problem = _resolved(name)
    host, port = host_and_port(endpoint or "")
    toward, endpoint_problem = _towards(host) if host else (None, "")
    return Network(
        name=name, name_addresses=addresses, name_problem=problem,
        name_is_bindable=any(_can_bind(address, 0) for address in addresses),
        interfaces=tuple(_interface(each) for each in psutil.net_if_addrs()),
        towards_endpoint=toward, endpoint_host=host, endpoint_problem=endpoint_problem,
        default_route=_towards("192.0.2.1")[0],   # an address for documentation: nothing is sent
        loopback_problem=_loopback_problem(), ports=_ports(port if node_rank == 0 else None),
        proxies=environment.those_set(_both_cases(_PROXIES)), no_proxy=environment.no_proxy())


def host_and_port(endpoint: str) -> tuple[str | None, int | None]:
    """The parts of HOST:PORT; None for one that is not there, or is no port."""
    host, _, port = endpoint.rpartition(":")
    return host.strip("[]") or None, int(port) if port.isdecimal() and 0 < int(port) < 65536 else None


def _resolved(name: str) -> tuple[tuple[str, ...], str]:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError as error:
        return (), error.strerror or str(error)
    return tuple(dict.fromkeys(str(each[4][0]) for each in found)), ""


def _towards(host: str) -> tuple[str | None, str]:
    """The interface that leads to a host, and why there is none."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)   # a datagram socket: nothing is sent
            mine = probe.getsockname()[0]
    except OSError as error:
        return None, error.strerror or str(error)
    return next((name for name, addresses in psutil.net_if_addrs().items()
                 if any(each.address.partition("%")[0] == mine for each in addresses)), None), ""


def _interface(name: str) -> Interface:
    stats = psutil.net_if_stats().get(name)
    internet = (socket.AF_INET, socket.AF_INET6)
    addresses = tuple(each.address for each in psutil.net_if_addrs().get(name, ()) if each.family in internet)
    return Interface(name=name, addresses=addresses, is_up=bool(stats and stats.isup),
                     is_loopback=any(each in ("127.0.0.1", "::1") for each in addresses) or name == "lo",
                     is_virtual=not (_CLASS / name / "device").exists(), speed_bytes_per_second=_speed(name))


def _speed(name: str) -> float | None:
    with contextlib.suppress(OSError, ValueError):
        megabits = int((_CLASS / name / "speed").read_text())
        return megabits * 1e6 / 8 if megabits > 0 else None
    return None


def _loopback_problem() -> str:
    """Connect to a port of our own, as the ranks of one machine do."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(_CONNECT_SECONDS)
            with socket.create_connection(server.getsockname(), timeout=_CONNECT_SECONDS):
                server.accept()[0].close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _ports(of_endpoint: int | None) -> tuple[Port, ...]:
    """The ports that the environment and --endpoint name; those of a job that is under way are its own."""
    named = []
    address = environment.store_address()
    if address is not None and environment.world() is None:
        named.append((address[1], "MASTER_PORT"))
    if of_endpoint is not None:
        named.append((of_endpoint, "--endpoint"))
    return tuple(Port(number=number, meant_by=meant_by, owner=_owner(number)) for number, meant_by in named)


def _owner(port: int) -> str | None:
    """Who listens at a port; None where it is free."""
    if _can_bind("", port):
        return None
    with contextlib.suppress(psutil.Error, OSError):   # others' processes may be hidden
        for each in psutil.net_connections("tcp"):
            if each.laddr and each.laddr.port == port and each.status == psutil.CONN_LISTEN and each.pid:
                return f"process {each.pid} ({psutil.Process(each.pid).name()})"
    return "a process that cannot be seen from here"


def _can_bind(address: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as probe:
        if os.name == "posix":
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)   # one that has just been left is free
        probe.bind((address.partition("%")[0], port))
        return True
    return False


def _both_cases(names: Sequence[str]) -> tuple[str, ...]:
    return (*names, *(name.upper() for name in names))
