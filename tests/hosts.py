"""Several hosts on one machine: network namespaces on a bridge, each with a link that can be slowed down and cut."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

IP, TC = shutil.which("ip"), shutil.which("tc")
needs_hosts = pytest.mark.skipif(os.geteuid() != 0 or IP is None or sys.platform != "linux",
                                 reason="needs root, iproute2 and network namespaces")


class Host:
    """One host; `prefix` runs a command on it."""

    def __init__(self, name: str, address: str) -> None:
        self.name, self.address = name, address
        self.prefix = [str(IP), "netns", "exec", name]

    def slow_down(self, rate: str) -> None:
        """This host sends at `rate` (100mbit, 1gbit), as tc writes it; make it so on every host."""
        run = ["netns", "exec", self.name, str(TC), "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", rate]
        burst = "256kb" if rate.endswith("gbit") else "64kb"   # what passes at once: some milliseconds' worth
        _ip(*run, "burst", burst, "latency", "50ms")

    def sent_bytes(self) -> int:
        """What has left this host so far, by the network's own count."""
        shown = subprocess.run([str(IP), "-n", self.name, "-s", "-j", "link", "show", "eth0"], check=True, timeout=10,
                               capture_output=True, text=True).stdout
        count: int = json.loads(shown)[0]["stats64"]["tx"]["bytes"]
        return count

    def cut(self) -> None:
        """Nothing arrives any more, and nobody is told."""
        _ip("-n", self.name, "link", "set", "eth0", "down")


@contextlib.contextmanager
def hosts(count: int) -> Iterator[list[Host]]:
    """Hosts 10.77.9.1 and on, joined by a switch; gone at the end, with what runs on them."""
    switch = f"rankwise-{os.getpid()}-switch"
    found = [Host(f"rankwise-{os.getpid()}-{number}", f"10.77.9.{number + 1}") for number in range(count)]
    try:
        for name in (switch, *(host.name for host in found)):
            added = subprocess.run([str(IP), "netns", "add", name], capture_output=True, text=True, timeout=10)
            if added.returncode:
                pytest.skip(f"no network namespaces: {added.stderr.strip()}")
        _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge", "up")
        for number, host in enumerate(found):
            port = f"port{number}"
            _ip("-n", switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", host.name)
            _ip("-n", switch, "link", "set", port, "master", "bridge", "up")
            _ip("-n", host.name, "link", "set", "lo", "up")
            _ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", "eth0")
            _ip("-n", host.name, "link", "set", "eth0", "up")
        yield found
    finally:
        for name in (switch, *(host.name for host in found)):
            subprocess.run([str(IP), "netns", "del", name], capture_output=True, timeout=10, check=False)


def _ip(*arguments: str) -> None:
    subprocess.run([str(IP), *arguments], check=True, timeout=10)
