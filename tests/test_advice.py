"""The five lines at the end of a run, from books whose numbers are given: what they say, and what they advise."""

from __future__ import annotations

from typing import Any

import pytest

from rankwise.monitor.advice import advice
from rankwise.monitor.books import RankBook, Split
from rankwise.monitor.flops import Flops, peak_flops
from rankwise.monitor.summary import lines
from rankwise.monitor.usage import Usage

EVEN = {"data": 0.001, "forward": 0.040, "backward": 0.050, "communication": 0.002, "optimizer": 0.003, "other": 0.001}


def book(**changes: Any) -> RankBook:
    return RankBook(**{**EVEN, "outside": 0.5, "communication_total": 0.010, "wire_bytes": 4e6, "device_busy": None,
                       "flops_per_second": None, "memory_bytes": [400_000_000], **changes})


def usage(*ranks: RankBook, steps: int = 100, clock: str = "host") -> Usage:
    found = Usage()
    found.add(Split(step=steps, epoch=0, steps=steps, samples=steps * 97, clock=clock, ranks=list(ranks)))
    return found


@pytest.mark.parametrize(("ranks", "finding", "option"), [
    ([book(data=0.08)], "data-bound", "num_workers"),
    ([book(data=0.08), book(data=0.08)], "data-bound", "num_workers"),
    ([book(communication=0.05), book(communication=0.06)], "communication-bound", "bucket_mb"),
    ([book(communication=0.05, wire_bytes=8e4)] * 2, "communication-bound", "cost of a message"),
    ([book(communication=0.05, communication_total=None)], "communication-bound", "--mode ddp"),   # dp's scattering
    ([book(communication=0.05), book(communication=0.05), book(forward=0.088)], "imbalance", "--threads"),
    ([book(communication=0.05), book(data=0.049)], "imbalance", "num_workers"),
    ([book(device_busy=0.3)], "launch-bound", "torch.compile"),
    ([book(forward=3e-4, backward=3e-4, data=0.0, optimizer=1e-4, other=1e-4, communication=1e-4)] * 2, "launch-bound",
     "batch_size"),
    ([book()], "all fine", "rankwise compare"),
    ([book()] * 3, "all fine", "rankwise plan"),
    ([book(device_busy=0.95)], "all fine", "rankwise compare")])
def test_each_finding_names_its_option(ranks: list[RankBook], finding: str, option: str) -> None:
    found = advice(usage(*ranks))
    assert found.finding == finding
    assert found.text.startswith(finding)
    assert option in found.text


def test_the_dearest_is_advised() -> None:
    """Data that costs 30 % of the step goes before communication that costs 20 %, and the other way round."""
    data, communication = {"data": 0.06, "communication": 0.03}, {"data": 0.03, "communication": 0.06}
    assert advice(usage(book(**data), book(**data))).finding == "data-bound"
    assert advice(usage(book(**communication), book(**communication))).finding == "communication-bound"


def test_ranks_that_share_cores_are_told_so() -> None:
    slow = [book(communication=0.05), book(communication=0.05)]
    assert "share too few cores" in advice(usage(*slow), has_shared_cores=True).text
    assert "share too few cores" not in advice(usage(*slow)).text


def test_a_rank_is_called_slowest_by_its_own_time_not_by_its_waiting() -> None:
    """Rank 1 computes 30 ms longer; 0 and 2 wait for it, so their steps are as long as its."""
    found = usage(book(communication=0.032), book(backward=0.080), book(communication=0.032))
    assert found.slowest == 1
    assert found.lagging_part == "backward"
    assert found.lag_seconds == pytest.approx(0.030)
    assert found.transport_seconds == pytest.approx(0.002)
    assert found.waiting_seconds == pytest.approx(0.020)
    assert found.step_seconds == pytest.approx(0.127)


def test_intervals_count_by_their_steps() -> None:
    found = usage(book(forward=0.010), steps=30)
    found.add(Split(step=40, epoch=0, steps=10, samples=10, clock="host", ranks=[book(forward=0.050)]))
    assert found.mean("forward") == pytest.approx(0.020)
    assert found.samples == 30 * 97 + 10


def test_five_lines_say_what_was_measured() -> None:
    told = lines(usage(book(communication=0.032, communication_total=0.025, memory_bytes=[300_000_000]),
                       book(backward=0.080, communication_total=0.025)), device_name="")
    assert [line.split("  ")[0] for line in told] == ["throughput", "step", "memory", "slowest rank", "advice"]
    assert "764 samples/s (382 samples/s a device), 127 ms a step, mean over 100 steps" in told[0]
    assert "forward 31 %" in told[1]
    assert "communication 13 % exposed (17.0 ms; about 25.0 ms in all, by torch's DDP log; 4.00 MB sent" in told[1]
    assert "first 300 MB, others at most 400 MB (rank 1); peak resident memory of the process" in told[2]
    assert "rank 1: 30.0 ms a step behind the others, most of it in backward; ranks wait 15.0 ms" in told[3]


def test_what_is_exposed_is_never_more_than_all() -> None:
    """The total is that of one step in an interval, which may have waited less than the others."""
    told = lines(usage(book(communication=0.032), book(communication=0.032)), device_name="")
    assert "exposed (32.0 ms; hardly any is hidden; 4.00 MB sent a rank)" in told[1]


def test_what_is_not_measured_is_said() -> None:
    told = lines(usage(book(communication_total=None), book(communication_total=None)), device_name="")
    assert "in all: not measured" in told[1]
    assert "none: 0 us a step lie between" in told[3]
    alone = lines(usage(book(communication=0.0, communication_total=None)), device_name="")
    assert "there is one rank" in alone[3]
    assert "exposed" not in alone[1]


def test_the_use_of_a_gpu_is_told_with_its_peak() -> None:
    told = lines(usage(book(device_busy=0.9, flops_per_second=78e12, memory_bytes=[5_000_000_000, 6_000_000_000]),
                       clock="CUDA events"), device_name="NVIDIA A100-SXM4-80GB")
    assert "device busy 90 %; 78 TFLOP/s a device = 25 % of its dense 16-bit peak" in told[0]   # of 312
    assert "first 5.00 GB, others at most 6.00 GB (rank 0); peak allocated by torch" in told[2]


@pytest.mark.parametrize(("name", "peak"), [("NVIDIA A100-SXM4-40GB", 312e12), ("NVIDIA A10", 125e12),
                                            ("NVIDIA H100 PCIe", 756e12), ("NVIDIA H100 80GB HBM3", 989e12),
                                            ("some card", None)])
def test_the_peak_of_a_card_is_that_of_its_longest_name(name: str, peak: float | None) -> None:
    assert peak_flops(name) == peak


def test_operations_are_counted_once_by_the_first_training_forward() -> None:
    """Two layers of 6x4 and 4x2 on 5 rows: 2 * 5 * (24 + 8) operations, three times that with backward."""
    import torch
    flops = Flops(torch.device("cuda"))
    model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    flops.watch(model)
    flops.began_with(5)
    assert flops.per_second(5, 1.0) is None
    with torch.no_grad():
        model(torch.ones(9, 6))
    for _ in range(2):
        model(torch.ones(5, 6)).sum().backward()
    assert flops.per_second(10, 2.0) == 3 * 2 * (24 + 8) * 10 / 2.0
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


def test_a_forward_that_fails_ends_the_counting() -> None:
    import torch
    flops = Flops(torch.device("cuda"))
    model = torch.nn.Linear(6, 4)
    flops.watch(model)
    with pytest.raises(RuntimeError):
        model(torch.ones(5, 5))
    assert torch.ones(2).add(1).sum() == 4   # no mode is left
    assert not model._forward_hooks


def test_nothing_is_counted_on_a_cpu() -> None:
    import torch
    flops = Flops(torch.device("cpu"))
    model = torch.nn.Linear(6, 4)
    flops.watch(model)
    assert not model._forward_pre_hooks
