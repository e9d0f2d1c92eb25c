"""What an all-reduce costs: Hockney's model of a link, applied to a ring, a tree and a hierarchy of nodes.

Sources: Thakur, Rabenseifner and Gropp, Optimization of Collective Communication Operations in MPICH (2005), section 3
(the model) and 4; Patarasuk and Yuan, Bandwidth Optimal All-reduce Algorithms for Clusters of Workstations (2009; the
ring); Sanders, Speck and Träff, Two-tree Algorithms for Full Bandwidth Broadcast, Reduction and Scan (2009) and NCCL's
src/graph/tuning.cc (the tree). What it takes to add numbers up is in the rate of a link that was measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from rankwise.plan.links import Link


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Devices, some to a node: each has a link `inside` its node, and a node one link `between` nodes."""

    devices: int
    devices_per_node: int
    inside: Link
    between: Link
    backend: str

    @property
    def nodes(self) -> int:
        return -(-self.devices // self.devices_per_node)

    @property
    def devices_of_a_node(self) -> int:
        return min(self.devices, self.devices_per_node)

    @property
    def slowest(self) -> Link:
        """The link that sets the pace of a ring or a tree through all devices."""
        return self.between if self.nodes > 1 else self.inside


def all_reduce_seconds(size_bytes: float, cluster: Cluster) -> float:
    """Seconds of the algorithm that the backend would choose: gloo has the ring alone, NCCL takes the fastest."""
    if cluster.devices == 1 or size_bytes <= 0:
        return 0.0
    return min(algorithm(size_bytes, cluster) for algorithm in ALGORITHMS[cluster.backend].values())


def chosen(size_bytes: float, cluster: Cluster) -> str:
    """The name of that algorithm."""
    algorithms = ALGORITHMS[cluster.backend]
    return min(algorithms, key=lambda name: algorithms[name](size_bytes, cluster))


def ring(size_bytes: float, cluster: Cluster) -> float:
    """2(p-1) steps in each of which every device passes on one p-th, at the pace of the slowest link in the ring."""
    return 2 * _ring_pass(size_bytes, cluster.devices, cluster.slowest)


def tree(size_bytes: float, cluster: Cluster) -> float:
    """Two trees over the nodes that share the work, with a chain in each node: up and down, all bytes both times."""
    between, slowest = cluster.between.latency_seconds, cluster.slowest
    one_way = ((cluster.devices_of_a_node - 1) * cluster.inside.latency_seconds
               + math.ceil(math.log2(cluster.nodes)) * between)
    return 2 * (one_way + size_bytes / slowest.bytes_per_second)


def hierarchical(size_bytes: float, cluster: Cluster) -> float:
    """Reduce-scatter in each node, all-reduce of the parts between nodes, all-gather in each node.

    All parts of a node pass its one link, so the all-reduce between nodes is one of all bytes over the nodes.
    """
    inside = 2 * _ring_pass(size_bytes, cluster.devices_of_a_node, cluster.inside)
    nodes = Cluster(devices=cluster.nodes, devices_per_node=1, inside=cluster.between, between=cluster.between,
                    backend=cluster.backend)
    return inside + min(ring(size_bytes, nodes), tree(size_bytes, nodes))


def _ring_pass(size_bytes: float, devices: int, link: Link) -> float:
    """Seconds of a reduce-scatter, or of an all-gather, over a ring."""
    return (devices - 1) * link.seconds(size_bytes / devices)


def wire_bytes(size_bytes: float, devices: int) -> float:
    """Bytes that each device sends, and receives, in an all-reduce: the least there can be (Patarasuk and Yuan)."""
    return 2 * (devices - 1) / devices * size_bytes


ALGORITHMS: dict[str, dict[str, Callable[[float, Cluster], float]]] = {
    "gloo": {"ring": ring},   # gloo/allreduce.cc
    "nccl": {"ring": ring, "tree": tree, "hierarchical": hierarchical},
}
