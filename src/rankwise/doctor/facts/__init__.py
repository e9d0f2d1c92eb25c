"""Facts: what is read of this machine, as plain values; what they mean is decided by `checks`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from rankwise.doctor.facts.gpus import Gpus
from rankwise.doctor.facts.host import Host
from rankwise.doctor.facts.network import Network
from rankwise.doctor.facts.software import Software


@dataclass(frozen=True, kw_only=True)
class Unread:
    """Facts that could not be read: why, and whether that is a fault: the reader hung or died, as a broken driver makes
    it, or the system starts no process.
    """

    what: str
    reason: str
    is_fault: bool


class NotReadError(Exception):
    """A check asked for facts that could not be read."""

    def __init__(self, unread: Unread) -> None:
        super().__init__(unread)
        self.unread = unread


@dataclass(frozen=True, kw_only=True)
class Task:
    """What the machine is examined for: how many machines take part, and where they meet."""

    nodes: int = 1
    node_rank: int = 0
    endpoint: str | None = None   # HOST:PORT


@dataclass(frozen=True, kw_only=True)
class Facts:
    """All that is known of this machine. A part that could not be read is Unread, and asking for it is an error."""

    software_or_not: Software | Unread
    gpus_or_not: Gpus | Unread
    host_or_not: Host | Unread
    network_or_not: Network | Unread
    variables: dict[str, str]    # of the families that matter, and no other
    own_words: tuple[str, ...]   # names and addresses of this machine and its user: what stays here
    task: Task

    @property
    def software(self) -> Software:
        return _read(self.software_or_not)

    @property
    def gpus(self) -> Gpus:
        return _read(self.gpus_or_not)

    @property
    def host(self) -> Host:
        return _read(self.host_or_not)

    @property
    def network(self) -> Network:
        return _read(self.network_or_not)

    def unread(self) -> list[Unread]:
        """The parts that could not be read."""
        parts = (self.software_or_not, self.gpus_or_not, self.host_or_not, self.network_or_not)
        return [part for part in parts if isinstance(part, Unread)]


_T = TypeVar("_T", Software, Gpus, Host, Network)


def _read(part: _T | Unread) -> _T:
    if isinstance(part, Unread):
        raise NotReadError(part)
    return part
