"""The arithmetic of `rankwise plan`, against simulations, torch itself and figures of the papers."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.errors import UsageError
from rankwise.plan.buckets import Bucket, Gradient, buckets, exposed_seconds
from rankwise.plan.collectives import Cluster, all_reduce_seconds, chosen, hierarchical, ring, tree, wire_bytes
from rankwise.plan.curves import Curve, line_through
from rankwise.plan.linkfit import fitted
from rankwise.plan.links import Link, link, names
from rankwise.plan.memory import LAYOUTS, Memory, peak_of

SLOW = Link(name="slow", latency_seconds=1e-3, bytes_per_second=1e6, spread=0.1, source="")
FAST = Link(name="fast", latency_seconds=1e-5, bytes_per_second=1e9, spread=0.1, source="")


def cluster(devices: int, per_node: int = 1, backend: str = "nccl") -> Cluster:
    return Cluster(devices=devices, devices_per_node=per_node, inside=FAST, between=SLOW, backend=backend)


def simulated_ring(size_bytes: float, links: list[Link]) -> float:
    """Seconds until every device has every chunk; device d sends to d + 1 over links[d], a chunk when it has it."""
    devices = len(links)
    chunk = size_bytes / devices
    has = [{(device, 0): 0.0} for device in range(devices)]   # (chunk, steps that it has gone): when
    free = [0.0] * devices
    for step in range(2 * (devices - 1)):
        for device in range(devices):
            origin = (device - step) % devices
            began = max(has[device][(origin, step)], free[device])
            free[device] = began + links[device].seconds(chunk)
            has[(device + 1) % devices][(origin, step + 1)] = free[device]
    return max(free)


@settings(deadline=None)
@given(st.integers(2, 9), st.floats(1, 1e9))
def test_a_ring_takes_as_long_as_its_messages(devices: int, size_bytes: float) -> None:
    """The formula is the time of a ring that is played through message by message."""
    assert ring(size_bytes, cluster(devices)) == pytest.approx(simulated_ring(size_bytes, [SLOW] * devices))


@settings(deadline=None)
@given(st.integers(2, 4), st.integers(2, 4), st.floats(1, 1e9))
def test_a_ring_through_nodes_goes_at_the_pace_of_the_links_between_them(nodes: int, per_node: int,
                                                                         size_bytes: float) -> None:
    """Where some links are fast the ring, played through, is never slower than the formula, nor much faster."""
    links = ([FAST] * (per_node - 1) + [SLOW]) * nodes
    played, predicted = simulated_ring(size_bytes, links), ring(size_bytes, cluster(nodes * per_node, per_node))
    assert played <= predicted * (1 + 1e-9)
    if size_bytes > 1e7:
        assert played > predicted * (1 - 1.5 / nodes)


def test_a_tree_has_few_messages_and_a_ring_few_bytes() -> None:
    """64 devices: 2 x 6 latencies and twice all bytes, by hand: a tree wins with little to send, a ring with much."""
    assert tree(1e6, cluster(64)) == pytest.approx(12 * 1e-3 + 2 * 1.0)
    assert chosen(1e3, cluster(64)) == "tree"
    assert chosen(1e9, cluster(64)) == "ring"
    assert all_reduce_seconds(1e3, cluster(64, backend="gloo")) == ring(1e3, cluster(64))   # gloo has no other


def test_nodes_of_many_devices_send_less_between_them() -> None:
    """4 nodes of 8: 2 x 7 messages inside of one eighth, then 2 x 3 of a fourth between, by hand."""
    inside, between = 14 * (1e-5 + 125e3 / 1e9), 6 * (1e-3 + 250e3 / 1e6)
    assert hierarchical(1e6, cluster(32, 8)) == pytest.approx(inside + between)
    assert all_reduce_seconds(1e6, cluster(32, 8)) == pytest.approx(inside + between)
    assert ring(1e6, cluster(32, 8)) > inside + between


@settings(deadline=None)
@given(st.integers(2, 5000), st.integers(1, 16), st.floats(1, 1e11))
def test_no_algorithm_sends_less_than_it_must(devices: int, per_node: int, size_bytes: float) -> None:
    """Patarasuk and Yuan's bound holds for the fastest link; one device has nothing to send."""
    least = wire_bytes(size_bytes, devices) / FAST.bytes_per_second
    assert all_reduce_seconds(size_bytes, cluster(devices, per_node)) >= least * (1 - 1e-9)
    assert all_reduce_seconds(size_bytes, cluster(1, per_node)) == 0


@settings(deadline=None)
@given(st.lists(st.integers(1, 3000), min_size=1, max_size=30))
def test_buckets_are_those_of_torch(sizes: list[int]) -> None:
    """torch's own assignment, with limits small enough to be met."""
    gradients = [Gradient(size_bytes=4 * size, ready=number / len(sizes)) for number, size in enumerate(sizes)]
    theirs, _ = dist._compute_bucket_assignment_by_size([torch.empty(size) for size in sizes], [1000, 5000])
    found = buckets(gradients, first_bytes=1000, other_bytes=5000)
    expected = [sum(4 * sizes[index] for index in each) for each in sorted(theirs)]
    assert [bucket.size_bytes for bucket in found] == expected
    assert [bucket.ready for bucket in found] == [max(each) / len(sizes) for each in sorted(theirs)]


def test_the_limits_are_those_of_torch() -> None:
    from rankwise.plan import buckets as module
    assert module.FIRST_BYTES == dist._DEFAULT_FIRST_BUCKET_BYTES
    assert module.OTHER_BYTES == 25 * 1024 * 1024


def test_what_backward_hides_is_not_exposed() -> None:
    """Played through by hand: three buckets of 1 s each, of which the second waits for the first."""
    three = [Bucket(size_bytes=1, ready=ready) for ready in (0.1, 0.15, 1.0)]
    assert exposed_seconds(three, 10.0, lambda size: 1.0) == pytest.approx(1.0)     # at 1-2, 2-3, 10-11
    assert exposed_seconds(three, 1.0, lambda size: 1.0) == pytest.approx(2.1)      # at 0.1, 1.1, 2.1 to 3.1
    assert exposed_seconds(three[:2], 10.0, lambda size: 1.0) == 0.0


@settings(deadline=None)
@given(st.floats(1e-6, 10), st.floats(1e-6, 10), st.lists(st.integers(1, 4096), min_size=2, max_size=6, unique=True))
def test_a_line_is_found(fixed: float, slope: float, sizes: list[int]) -> None:
    """Points on a line give that line, whose error is nothing, and a curve that is the same between and beyond them."""
    points = [(float(size), fixed + slope * size) for size in sizes]
    line, curve = line_through(points), Curve.of(points)
    assert line.error < 1e-6
    for size in (*sizes, 0.5 * sum(sizes), 10000):
        assert line.at(size) == pytest.approx(fixed + slope * size, rel=1e-3)
        assert curve.at(size) == pytest.approx(fixed + slope * size, rel=1e-3)


def test_a_line_is_never_below_zero() -> None:
    """What falls with the size is level, what would begin below zero begins at zero; one size alone is level."""
    assert line_through([(1, 2.0), (2, 1.0)]).slope == 0
    through = line_through([(10, 1.0), (20, 3.0)])
    assert (through.fixed, through.slope > 0) == (0.0, True)
    assert line_through([(10, 3.0)]).at(99) == pytest.approx(3.0)


def test_a_bend_is_seen() -> None:
    """A value that lies 25 % above the straight between its neighbours; beyond the ends the slope goes on."""
    curve = Curve.of([(1, 1.0), (2, 2.5), (3, 3.0)])
    assert [curve.bend(size) for size in (1, 1.5, 3, 4)] == pytest.approx([0, 0.2, 0.2, 0])   # 2.0, where 2.5 is
    assert curve.at(2.5) == pytest.approx(2.75)
    assert not curve.covers(3.5)
    assert curve.at(4) == pytest.approx(3.0 + curve.line.slope)
    assert Curve.of([(1, 1.0), (1, 3.0)]).at(1) == 2.0


@settings(deadline=None)
@given(st.floats(1e-6, 1e-2), st.floats(1e5, 1e11))
def test_a_link_is_found_from_all_reduces_of_two(latency: float, rate: float) -> None:
    """Times of a ring of two that is played through give the link back."""
    true = replace(SLOW, latency_seconds=latency, bytes_per_second=rate)
    seconds = {size: [simulated_ring(size, [true, true])] * 3 for size in (1024, 65536, 4 << 20, 64 << 20)}
    found = fitted("it", seconds, "")
    assert found.latency_seconds == pytest.approx(latency, rel=1e-3, abs=1e-7)
    assert found.bytes_per_second == pytest.approx(rate, rel=1e-3)
    assert found.spread < 1e-3


def test_a_burst_that_passes_at_once_is_no_rate() -> None:
    """A token bucket lets 256 KB pass in no time: the rate is that of what follows."""
    true = replace(SLOW, bytes_per_second=1e8)
    seconds = {size: [0.002 if size <= 256 << 10 else simulated_ring(size, [true, true])] * 3
               for size in (1 << 10, 4 << 10, 64 << 10, 256 << 10, 1 << 20, 16 << 20)}
    assert fitted("it", seconds, "").bytes_per_second == pytest.approx(1e8, rel=0.02)
    slow = {size: [simulated_ring(size, [SLOW, SLOW])] for size in (1 << 10, 4 << 10, 1 << 20)}
    assert fitted("it", slow, "").bytes_per_second == pytest.approx(1e6, rel=0.01)


def test_a_link_that_varies_has_a_spread() -> None:
    """Quartiles 20 % below and above the median, at every size; one outlier in five changes nothing."""
    seconds = {size: [0.8 * t, 0.8 * t, t, 1.2 * t, 1.2 * t] for size in (1024, 4 << 20)
               for t in (simulated_ring(size, [SLOW, SLOW]),)}
    assert fitted("it", seconds, "").spread == pytest.approx(0.2, rel=0.01)
    outlier = {size: [*[found[2]] * 4, 100 * found[2]] for size, found in seconds.items()}
    assert fitted("it", outlier, "").bytes_per_second == pytest.approx(1e6, rel=1e-6)


def test_sharding_is_that_of_the_paper() -> None:
    """Rajbhandari et al. 2020, figure 1: 7.5 billion parameters, 64 devices, mixed-precision Adam, in GB."""
    billions = 7_500_000_000
    memory = Memory(parameter_bytes=2 * billions, gradient_bytes=2 * billions, optimizer_bytes=12 * billions,
                    buffer_bytes=0, peak=peak_of([(1, 1.0)]))
    figures = {name: memory.states_bytes(name, 64) / 1e9 for name in LAYOUTS}
    assert figures == pytest.approx({"ddp": 120, "zero1": 31.4, "zero2": 16.6, "zero3": 1.9}, abs=0.06)
    psi = 2 * billions   # section 7: twice the parameters for stages 1 and 2, as in DDP, three times for stage 3
    assert [round(memory.wire_bytes(name, 10 ** 6) / psi, 3) for name in LAYOUTS] == [2.0, 2.0, 2.0, 3.0]


def test_what_fits_follows_from_the_measured_peaks() -> None:
    """Peaks of 100 B and 10 B a sample, of which 60 B are states: 40 B are the process's own."""
    memory = Memory(parameter_bytes=20, gradient_bytes=20, optimizer_bytes=20, buffer_bytes=0,
                    peak=peak_of([(1, 110.0), (4, 140.0)]), capacity_bytes=205)
    assert memory.other_bytes == pytest.approx(40)
    assert memory.most_rows("ddp", 1) == 10
    assert memory.most_rows("zero1", 2) == 11   # half of the optimizer's 20
    assert memory.device_bytes("ddp", 8, 10) == pytest.approx(200)
    assert replace(memory, capacity_bytes=90).most_rows("ddp", 1) == 0
    assert replace(memory, capacity_bytes=None).most_rows("ddp", 1) is None
    assert replace(memory, peak=peak_of([(1, 100.0), (4, 100.4), (9, 100.0)])).most_rows("ddp", 1) is None


def test_links_have_names_rates_and_latencies() -> None:
    """Rates in bytes a second: of the nominal one by name, all of a stated one."""
    assert link("--link", "100gbit").bytes_per_second == pytest.approx(0.8 * 100e9 / 8)
    assert link("--link", "nvlink").bytes_per_second == link("--link", "nvlink4").bytes_per_second
    stated = link("--link", "40gbit:20us")
    assert (stated.bytes_per_second, stated.latency_seconds) == (pytest.approx(5e9), pytest.approx(20e-6))
    assert link("--link", "12.5GB/s").bytes_per_second == pytest.approx(12.5e9)
    for name in names():
        assert math.isfinite(link("--link", name).seconds(1e6))
        assert link("--link", name).source


@pytest.mark.parametrize(("text", "said"), [("100gbits", "Did you mean --link 100gbit?"), ("fast", "a rate is written"),
                                            ("0gbit", "a rate is written"), ("10gbit:slow", "slow is none")])
def test_what_is_no_link_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match="--link is") as error:
        link("--link", text)
    assert said in str(error.value)


def test_a_link_is_off_by_its_spread() -> None:
    slower = SLOW.slower_by(0.25)
    assert slower.seconds(1e6) == pytest.approx(1.25 * SLOW.seconds(1e6))
