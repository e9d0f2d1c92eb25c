"""A real Ray cluster of several hosts on one machine, each a network namespace with a node of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from hosts import IP, Host, hosts

RAY = Path(sys.executable).parent / "ray"
_CPUS = 2
_STORE_BYTES = 100_000_000
_START_SECONDS = 90


@contextlib.contextmanager
def ray_cluster(count: int, folder: Path) -> Iterator[list[Host]]:
    """Hosts that are nodes of one cluster, two cores each; the first is its head, at port 6379.

    At the end everything that runs on them is killed: `ray stop` would end every Ray of this machine.
    """
    with hosts(count) as found:
        try:
            for number, host in enumerate(found):
                head = ["--head", "--port=6379", "--include-dashboard=false"]
                _start(host, head if number == 0 else [f"--address={found[0].address}:6379"],
                       folder / f"node{number}")
            yield found
        finally:
            for host in found:
                _kill(host)


def _start(host: Host, words: list[str], folder: Path) -> None:
    started = subprocess.run(
        [*host.prefix, str(RAY), "start", *words, f"--node-ip-address={host.address}", f"--num-cpus={_CPUS}",
         "--num-gpus=0", f"--object-store-memory={_STORE_BYTES}", f"--temp-dir={folder}", "--disable-usage-stats"],
        capture_output=True, text=True, timeout=_START_SECONDS, stdin=subprocess.DEVNULL, check=False)
    assert started.returncode == 0, started.stdout + started.stderr


def drain(head: Host, host: Host, *, seconds: float) -> None:
    """Give notice, as an autoscaler does: the node of this host is taken away in so many seconds."""
    code = (f"import ray; ray.init('{head.address}:6379', logging_level='ERROR', log_to_driver=False); "
            f"print(*(node['NodeID'] for node in ray.nodes() if node['NodeManagerAddress'] == '{host.address}'))")
    asked = [*head.prefix, sys.executable, "-c", code]
    number = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=True).stdout.strip()
    drained = subprocess.run(
        [*head.prefix, str(RAY), "drain-node", f"--address={head.address}:6379", f"--node-id={number}",
         "--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=test",
         f"--deadline-remaining-seconds={seconds:.0f}"], capture_output=True, text=True, timeout=60, check=False)
    assert drained.returncode == 0, drained.stdout + drained.stderr


def pids(host: Host) -> list[int]:
    """What runs on a host."""
    shown = subprocess.run([str(IP), "netns", "pids", host.name], capture_output=True, text=True, timeout=9,
                           check=True)
    return [int(pid) for pid in shown.stdout.split()]


def _kill(host: Host) -> None:
    for pid in pids(host):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
