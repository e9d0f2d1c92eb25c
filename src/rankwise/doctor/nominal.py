"""What the link between the ranks should give: its nominal rate in one direction, from what the machine says of it."""

from __future__ import annotations

from dataclasses import dataclass

from rankwise.doctor.facts import Facts, NotReadError
from rankwise.doctor.facts.gpus import Gpu

# Gigabytes a second in one direction: of a link of NVLink by its version, and of a lane of PCIe by its generation
# (their specifications, as Wikipedia's articles on NVLink and PCI Express list them).
_NVLINK = {1: 20.0, 2: 25.0, 3: 25.0, 4: 25.0, 5: 50.0}
_PCIE = {3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}


@dataclass(frozen=True, kw_only=True)
class Nominal:
    """A link by its name and its nominal rate; None where nothing says how fast it is."""

    name: str
    bytes_per_second: float | None


def between_ranks(facts: Facts, *, on_gpus: bool) -> Nominal | None:
    """The slowest link on a ring of all ranks; None on one machine without GPUs, where the memory bounds it."""
    try:
        if facts.task.nodes > 1 and not facts.network.endpoint_is_loopback:
            return _of_network(facts)
        return _of_gpus(facts) if on_gpus else None
    except NotReadError:
        return None


def _of_network(facts: Facts) -> Nominal:
    way = facts.network.towards_endpoint
    if facts.network.endpoint_host in facts.network.name_addresses or way in (None, "lo"):
        way = facts.network.default_route or way
    card = next((each for each in facts.network.interfaces if each.name == way and not each.is_virtual), None)
    return Nominal(name=f"interface {way}", bytes_per_second=card.speed_bytes_per_second if card else None)


def _of_gpus(facts: Facts) -> Nominal | None:
    links = [_of_gpu(gpu) for gpu in facts.gpus.found]
    return min(links, key=lambda link: link.bytes_per_second or 0.0, default=None)


def _of_gpu(gpu: Gpu) -> Nominal:
    if gpu.nvlinks:
        a_link = _NVLINK.get(gpu.nvlink_version or 0)
        return Nominal(name=f"NVLink, {gpu.nvlinks} links",
                       bytes_per_second=None if a_link is None else gpu.nvlinks * a_link * 1e9)
    a_lane = _PCIE.get(gpu.pcie_generation or 0)
    return Nominal(name=f"PCIe {gpu.pcie_generation or '?'}, {gpu.pcie_width or '?'} lanes",
                   bytes_per_second=None if a_lane is None or gpu.pcie_width is None else gpu.pcie_width * a_lane * 1e9)
