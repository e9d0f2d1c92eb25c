"""The links of a plan: which are measured, and that they are measured right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hosts import hosts, needs_hosts
from launches import RANKWISE, Launch
from rankwise.errors import UsageError
from rankwise.plan import here, planning
from rankwise.plan.linkfit import fitted
from rankwise.plan.links import Link, link
from rankwise.settings import Settings

PORT = 29537
MEASURED = Link(name="measured here", latency_seconds=1e-3, bytes_per_second=1e9, spread=0.1, source="It was measured.")


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


@pytest.mark.parametrize(("between", "inside", "per_node", "expected"), [
    (None, None, 1, ("measured here", "measured here", 1)), ("10gbit", None, 1, ("10gbit", "10gbit", 0)),
    ("10gbit", None, 8, ("measured here", "10gbit", 1)), ("10gbit", "pcie5", 8, ("pcie5", "10gbit", 0)),
    (None, "pcie5", 8, ("pcie5", "measured here", 1))])
def test_what_is_not_given_is_measured(between: str | None, inside: str | None, per_node: int,
                                       expected: tuple[str, str, int], monkeypatch: pytest.MonkeyPatch,
                                       tmp_path: Path) -> None:
    """The links inside a node and between nodes, and how often two devices here are measured for them."""
    measurements: list[Path] = []
    monkeypatch.setattr(here, "measured_link", lambda settings, folder: measurements.append(folder) or MEASURED)
    request = planning.Request(devices=[8], devices_per_node=per_node, inside=inside and link("--link-inside", inside),
                               between=between and link("--link", between), global_batch=None, steps=5)
    found = planning._links(Settings(), request, "gloo", tmp_path)
    assert (*(each.name for each in found), len(measurements)) == expected
    assert all(each.latency_seconds >= 1e-4 for each in found)   # over gloo, by whatever name
    assert ("give --link" in found[1].source) == (between is None)


def test_one_device_has_no_link_to_measure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With one accelerator a link must be given."""
    monkeypatch.setattr(here, "count", lambda kind: 1)
    with pytest.raises(UsageError, match="Give --link 100gbit"):
        here.measured_link(Settings(), tmp_path)
