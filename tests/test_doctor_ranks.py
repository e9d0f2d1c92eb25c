"""The active part of `rankwise doctor`: on real ranks, broken on purpose, and its reasoning on made-up reports."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from ranks import run_plain
from rankwise import stopwatch
from rankwise.doctor.finding import FAULT, OK, WARNING, Finding
from rankwise.doctor.nominal import Nominal
from rankwise.doctor.ranks import attendance, links, steps
from rankwise.doctor.ranks.attendance import Attendance
from rankwise.doctor.ranks.findings import findings_of
from rankwise.doctor.ranks.pairs import rounds
from rankwise.doctor.ranks.report import FORMING, Pair, Report, Tally, Timing, Wrong
from rankwise.doctor.ranks.taking import take_part
from rankwise.doctor.ranks.transport import words_of
from rankwise.errors import PeerError
from rankwise.world import World

LIMIT_SECONDS = 4.0


def compute_wrongly(world: World) -> None:
    """Rank 1 sums wrongly, one element of one dtype; and what rank 2 sends is not what it has."""
    real, real_broadcast = dist.all_reduce, dist.broadcast

    def all_reduce(tensor: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        work = real(tensor, *arguments, **options)
        if world.rank == 1 and tensor.dtype == torch.float16 and len(tensor) == 1023:
            tensor[1000] += 1
        return work

    def broadcast(tensor: torch.Tensor, source: int) -> Any:
        sent = tensor.clone().zero_() if world.rank == source == 2 else tensor
        return real_broadcast(sent, source)

    dist.all_reduce, dist.broadcast = all_reduce, broadcast


def work_thrice(world: World) -> None:
    """Rank 2 takes three times as long for the same product."""
    real = torch.mm

    def mm(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        for _ in range(2 if world.rank == 2 else 0):
            real(left, right)
        return real(left, right)

    torch.mm = mm


def never_join(world: World) -> None:
    """Rank 1 does not come."""
    if world.rank == 1:
        raise SystemExit("does not come")


def die(world: World) -> None:
    """Rank 1 is killed in the middle."""
    if world.rank == 1:
        dist.broadcast = lambda *_: os.kill(os.getpid(), signal.SIGKILL)


def hang(world: World) -> None:
    """Rank 1 stands still in the middle, in code that nothing interrupts; it ends with the others."""
    if world.rank == 1:
        dist.broadcast = lambda *_: time.sleep(1000)


def part(world: World, breaking: Any) -> tuple[int, list[Finding]]:
    """One rank of an examination, of which something is broken; the findings on rank 0."""
    stopwatch.SIZES_BYTES = (1024, 65536)   # all in this process alone
    attendance._LAST_WORD_SECONDS = 1.0
    steps._JOIN_SECONDS = 0.0
    if breaking is not None:
        breaking(world)
    found: list[Finding] = []

    def conclude(reports: list[Report]) -> int:
        found.extend(findings_of(reports, None))
        return int(any(each.verdict == FAULT for each in found))

    code = take_part(world, conclude, lambda code: code, lambda step: None, accelerator="cpu",
                     limit_seconds=LIMIT_SECONDS, findings=[], own_words=[])
    return code, found


def examined(breaking: Any) -> tuple[list[Any], dict[str, Finding]]:
    """What each of three ranks ended with, and the findings by check."""
    ends = run_plain(part, 3, breaking)
    assert not isinstance(ends[0], str), ends[0]
    return [end if isinstance(end, str) else end[0] for end in ends], {each.check: each for each in ends[0][1]}


@pytest.mark.environment
def test_ranks_that_are_right_and_one_that_is_slow() -> None:
    """Everything comes out exactly on every dtype that gloo takes, and what it refuses is listed; the slow one is
    named.
    """
    codes, found = examined(work_thrice)
    assert codes == [0, 0, 0]
    assert found["computation"].verdict == WARNING
    assert "rank 2 takes" in found["computation"].evidence
    wrong = {each.check: each.evidence for each in found.values() if each.verdict == FAULT}
    assert not wrong
    assert "3 ranks with gloo came through" in found["all ranks"].evidence
    for check in ("all-reduce", "broadcast", "all-gather", "reduce-scatter"):
        assert "bfloat16, bool," in found[check].evidence
        assert "gloo does not take: float8_e4m3fn, float8_e5m2, int16" in found[check].evidence
    assert "all-gather (ragged list) of any" in found["all-gather"].evidence


def test_ranks_that_are_wrong_are_named() -> None:
    """Also where a single element of a single dtype is wrong; all ranks end alike."""
    codes, found = examined(compute_wrongly)
    assert codes == [1, 1, 1]
    assert [each.check for each in found.values() if each.verdict == FAULT] == ["all-reduce", "broadcast"]
    assert found["all-reduce"].evidence.startswith(
        "Rank 1 got a wrong result, where the others got the right one. Wrong: all-reduce (")
    assert "of 1023 float16" in found["all-reduce"].evidence
    assert found["broadcast"].evidence.startswith("What rank 2 sends arrives wrong on rank 0 and 1.")


@pytest.mark.parametrize(("breaking", "words"), [
    pytest.param(never_join, "Rank 1 of 3 never joined.", marks=pytest.mark.environment),
    (die, "Rank 1 was lost, or hung, in step `broadcast`."),
    pytest.param(hang, "Rank 1 was lost, or hung, in step `broadcast`.", marks=pytest.mark.environment)])
def test_a_rank_that_is_lost_is_named(breaking: Any, words: str) -> None:
    """With the step it was in; the others end within the limits, with a fault."""
    codes, found = examined(breaking)
    assert (codes[0], codes[2]) == (1, 1)
    assert found["all ranks"].verdict == FAULT
    assert words in found["all ranks"].evidence
    assert found["computation"].verdict == ("not applicable" if breaking is never_join else OK)


# The reasoning, on reports that are made up

def report(rank: int, **changes: Any) -> Report:
    """A rank that is well, on its own machine."""
    return replace(Report(rank=rank, machine=rank, is_through=True, step="end", backend="gloo", device="x86_64",
                          software={"torch": "2.13.0"}, work_seconds=(1e-3, 1.01e-3, 1.02e-3, 2e-3),
                          timings=(Timing(size_bytes=1 << 20, seconds=1e-2),), copy_bytes_per_second=1e9,
                          tallies={"all-reduce": Tally(claimed=("all-reduce (sum) float32",), runs=3)}), **changes)


def finding(check: str, *reports: Report, link: Nominal | None = None) -> Finding:
    return next(each for each in findings_of(reports, link) if each.check == check)


def test_every_rank_wrong_is_not_blamed_on_one() -> None:
    """Where all see the same, nobody is named."""
    wrong = (Wrong(collective="all-reduce (sum)", dtype="float32", elements=7),)
    found = finding("all-reduce", report(0, wrongs=wrong), report(1, wrongs=wrong))
    assert found.verdict == FAULT
    assert "Every rank got a wrong result" in found.evidence


def test_a_group_that_cannot_be_formed_points_to_the_network() -> None:
    """All ranks say the same, which is told once, without a place in gloo's source."""
    said = PeerError("Rank 0 of 2 could not meet the others within 8 s.", "[enforce fail at /__w/pytorch/third_party/"
                     "gloo/transport/tcp/device.cc:84] ifa != nullptr. Unable to find address for: wrong", "")
    found = finding("all ranks", *(report(rank, step=FORMING, is_through=False, problem=words_of(said))
                                   for rank in range(2)))
    assert found.evidence == (
        "Ranks 0 and 1 in step `forming the group of all ranks`: Unable to find address for: wrong.")
    assert "findings on the network above" in found.remedy


def test_ranks_with_other_software_are_told() -> None:
    """Another torch, and other dtypes that it takes."""
    other = report(2, software={"torch": "2.11.0"}, tallies={"all-reduce": Tally()})
    assert "torch is 2.13.0 on rank 0, and 2.11.0 on rank 2" in finding("same software", report(0), report(1),
                                                                          other).evidence
    assert finding("all-reduce", report(0), report(1), other).verdict == FAULT


@pytest.mark.parametrize(("link", "verdict"), [
    (Nominal(name="NVLink, 18 links", bytes_per_second=450e9), WARNING),
    (Nominal(name="eth0", bytes_per_second=2e8), OK), (Nominal(name="eth0", bytes_per_second=None), OK), (None, OK)])
def test_bandwidth_against_what_the_link_should_give(link: Nominal | None, verdict: str) -> None:
    """1 MiB in 10 ms between two ranks is 105 MB/s of bus bandwidth; half of the nominal rate is asked for."""
    found = finding("bandwidth", report(0), report(1), link=link)
    assert found.verdict == verdict
    assert "bus bandwidth 105 MB/s" in found.evidence


def test_bandwidth_far_below_a_copy_in_memory() -> None:
    """On one machine without GPUs the memory is the measure."""
    reports = [report(rank, machine=0, copy_bytes_per_second=1e10) for rank in range(2)]
    assert finding("bandwidth", *reports).verdict == WARNING


def test_noise_makes_no_rank_slow() -> None:
    """A rank whose own best times are far apart has to be slower than that."""
    slow = report(1, work_seconds=(2e-3, 2.6e-3, 2.7e-3, 4e-3))
    assert finding("computation", report(0), slow).verdict == OK
    assert finding("computation", report(0), replace(slow, work_seconds=(2e-3,) * 4)).verdict == WARNING


def cluster(count: int, bad: dict[tuple[int, int], dict[str, Any]]) -> list[Report]:
    """Machines whose links are well, but for these."""
    def pair(one: int, other: int) -> Pair:
        changes = bad.get((min(one, other), max(one, other)), {})
        return Pair(**{"other": other, "latency_seconds": 1e-4, "bytes_per_second": 1e9,
                       "clock_offset_seconds": 0.01 * (other - one), **changes})
    return [report(one, pairs=tuple(pair(one, other) for other in range(count) if other != one))
            for one in range(count)]


BROKEN = {"problem": "Connect timeout", "bytes_per_second": None, "latency_seconds": None,
          "clock_offset_seconds": None}
SLOW = {"bytes_per_second": 1e8}


@pytest.mark.parametrize(("count", "bad", "words"), [
    (3, {(0, 2): BROKEN, (1, 2): BROKEN}, "Machine 2 does not work"),
    (3, {(1, 2): BROKEN}, "The link between machines 1 and 2 does not work"),
    (2, {(0, 1): BROKEN}, "The link between machines 0 and 1 does not work"),
    (4, {(0, 1): {"is_wrong": True}}, "what arrives is wrong"),
    (4, {(0, 3): SLOW, (1, 3): SLOW, (2, 3): SLOW}, "Machine 3 is slow"),
    (4, {(0, 3): SLOW, (1, 2): SLOW}, "The link between machines 0 and 3, 1 and 2 are slow"),
    (5, {(one, other): BROKEN for one in range(5) for other in range(one + 1, 5) if {one, other} & {1, 4}},
     "Machine 1, 4 do not work")])
def test_a_bad_machine_is_told_from_a_bad_link(count: int, bad: dict[tuple[int, int], dict[str, Any]],
                                               words: str) -> None:
    """A machine all of whose links are bad is named; else the links are."""
    found = finding("links", *cluster(count, bad))
    assert found.verdict == (WARNING if SLOW in bad.values() else FAULT)
    assert words in found.evidence


def test_clocks_that_differ_are_told() -> None:
    """More than a second."""
    assert finding("clocks", *cluster(3, {})).verdict == OK
    assert "20.0 ms apart (machines 0 and 2)" in finding("clocks", *cluster(3, {})).evidence
    assert finding("clocks", *cluster(3, {(0, 1): {"clock_offset_seconds": 90.0}})).verdict == WARNING


@given(st.integers(1, 40))
def test_every_two_machines_meet_once(machines: int) -> None:
    """And none has two partners in a round."""
    met = rounds(machines)
    assert sorted(pair for pairs in met for pair in pairs) == [
        (one, other) for one in range(machines) for other in range(one + 1, machines)]
    for pairs in met:
        at_once = [machine for pair in pairs for machine in pair]
        assert len(at_once) == len(set(at_once))


def test_when_it_is_over() -> None:
    """All have reported; or nobody moves for two limits; or one has met a problem and the others had their time."""
    seen = Attendance(2, limit_seconds=10.0, now=0.0)
    seen.note(0, "all-reduce", None, now=20.0)
    assert not seen.is_over(44.0, is_asked_to_end=False)
    assert seen.is_over(46.0, is_asked_to_end=False)
    assert seen.is_over(24.0, is_asked_to_end=True)
    seen.note(0, "all-reduce", report(0, problem="Connection closed by peer", is_through=False), now=30.0)
    assert not seen.is_over(34.0, is_asked_to_end=False)
    assert seen.is_over(36.0, is_asked_to_end=False)
    silent = seen.reports({})[1]
    assert (silent.has_joined, silent.step) == (False, "")
    assert seen.reports({1: report(1, is_through=False, step="broadcast")})[1].step == "broadcast"
    seen.note(1, "end", report(1), now=31.0)
    assert seen.is_over(31.0, is_asked_to_end=False)


def test_a_report_survives_its_journey() -> None:
    """As JSON and back."""
    whole = report(1, wrongs=(Wrong(collective="broadcast", dtype="int8", elements=7, source=0),),
                   pairs=(Pair(other=0, problem="x"),), own_words=("a", "b"),
                   machine_findings=({"check": "clock"},))
    assert Report.from_json(whole.to_json()) == whole
    assert links.merged([whole]) == {(0, 1): Pair(other=0, problem="x")}
