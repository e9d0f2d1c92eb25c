"""The link as `rankwise plan` measures it, against links of a known rate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hosts import hosts, needs_hosts
from launches import RANKWISE, Launch
from rankwise.plan.linkfit import fitted

PORT = 29537


@needs_hosts
@pytest.mark.timeout(200)
def test_a_link_of_a_known_rate_is_measured(tmp_path: Path) -> None:
    """Two hosts that send 300 Mbit/s each: what arrives of that is less the headers, and never more."""
    file = tmp_path / "link.json"
    command = [*RANKWISE, "run", "-m", "rankwise.plan.allreduce", "--accelerator", "cpu", "--mode", "ddp", "--devices",
               "1", "--nodes", "2", "--endpoint", f"10.77.9.1:{PORT}", "--name", "it"]
    with hosts(2) as found:
        for host in found:
            host.slow_down("300mbit")
        launches = [Launch([*command, "--node-rank", str(number), "--", str(file)], tmp_path, host.prefix)
                    for number, host in enumerate(found)]
        ends = [launch.ended() for launch in launches]
    assert [ended.code for ended in ends] == [0, 0], [ended.text for ended in ends]
    seconds = {int(size): found for size, found in json.loads(file.read_text()).items()}
    assert min(seconds) == 1024
    assert max(seconds) >= 16 << 20
    link = fitted("it", seconds, "")
    assert 0.75 < link.bytes_per_second / (300e6 / 8) < 1.03
    assert 0 < link.latency_seconds < 0.05
