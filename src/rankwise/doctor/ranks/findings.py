"""What the reports of all ranks show: who was lost, what came out wrong and on whom, how fast they are, who is slow."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from rankwise.doctor.finding import Finding, Seen, fault, not_applicable, ok, warning
from rankwise.doctor.nominal import Nominal
from rankwise.doctor.ranks import correctness, links
from rankwise.doctor.ranks.report import FORMING, Report
from rankwise.quantities import byte_count, percent, ratio, seconds
from rankwise.world import listed, ranks_in_words

GROUP = "ranks"
_LEAST_OF_NOMINAL = 0.5
_LEAST_OF_COPY = 0.02     # a copy over loopback passes the kernel twice, in pieces
_SLOW = 1.5               # times as long as the others
_NOISE_TIMES = 3          # and beyond so many times what lies between its best and its third best time


def findings_of(reports: Sequence[Report], link: Nominal | None, launcher_words: str = "") -> list[Finding]:
    """The findings of the active part; `launcher_words` is what the launcher said of a rank that failed."""
    seen: list[tuple[str, Seen]] = [("all ranks", presence(reports, launcher_words))]
    seen += [("same software", same_software(reports))]
    seen += [(name, correctness.collective(name, reports)) for name in ("all-reduce", "broadcast", "all-gather",
                                                                        "reduce-scatter")]
    seen += [("latency", latency(reports)), ("bandwidth", bandwidth(reports, link)), ("computation", work(reports))]
    if any(report.machine for report in reports):
        seen += [("links", links.pairs(reports)), ("clocks", links.clocks(reports))]
    return [Finding.of(GROUP, name, each) for name, each in seen]


def presence(reports: Sequence[Report], launcher_words: str = "") -> Seen:
    """Every rank came, and came through. Of those that did not, the silent ones come first: the others lost them."""
    absent = [each.rank for each in reports if not each.has_joined]
    waiting = {"meeting the other ranks"} if absent else set()
    silent = [each for each in reports if each.has_joined and not each.is_through and not each.problem
              and each.step not in waiting]
    told = [each for each in reports if each.problem]
    parts = []
    if absent:
        parts.append(f"{ranks_in_words(absent)} of {len(reports)} never joined.")
    for step in dict.fromkeys(each.step for each in silent):
        ranks = [each.rank for each in silent if each.step == step]
        parts.append(f"{ranks_in_words(ranks)} {'were' if len(ranks) > 1 else 'was'} lost, or hung, in step `{step}`.")
    if launcher_words:
        parts.append(launcher_words)
    for step, problem in list(dict.fromkeys((each.step, each.problem) for each in told))[:4]:
        ranks = [each.rank for each in told if (each.step, each.problem) == (step, problem)]
        parts.append(f"{ranks_in_words(ranks)} in step `{step}`: {problem.strip().rstrip('.')}.")
    if not parts:
        return ok(f"{len(reports)} ranks with {reports[0].backend} came through: {_devices(reports)}.")
    remedy = ("Start them all, with the same endpoint; see that machines reach each other." if absent else
              "See the finding on links below." if any(pair.problem for each in reports for pair in each.pairs) else
              "See the findings on the network above: interfaces and host name." if told and not silent and all(
                  each.step == FORMING for each in told) else
              "Look at that rank's machine: memory that ran out (dmesg), a GPU's error (nvidia-smi), its network.")
    return fault(" ".join(parts), remedy)


def same_software(reports: Sequence[Report]) -> Seen:
    """Ranks with different versions fail in ways that do not tell it."""
    known = [report for report in reports if report.software]
    if not known:
        return not_applicable("no rank said what it runs on.")
    for name, version in known[0].software.items():
        others = [report.rank for report in known if report.software.get(name) != version]
        if others:
            return fault(f"{name} is {version} on rank {known[0].rank}, and "
                         f"{known[others[0]].software.get(name) if len(known) == len(reports) else 'another one'} on "
                         f"rank {listed(others)}.", f"Install the same {name} on every machine.")
    return ok(", ".join(f"{name} {version}" for name, version in known[0].software.items()) + " on every rank.")


def latency(reports: Sequence[Report]) -> Seen:
    """What the smallest all-reduce takes; no limit is known that would hold for every machine."""
    timings = reports[0].timings
    if not timings:
        return not_applicable("not measured.")
    return ok(f"an all-reduce of {byte_count(timings[0].size_bytes)} takes {seconds(timings[0].seconds)}.")


def bandwidth(reports: Sequence[Report], link: Nominal | None) -> Seen:
    """The best bus bandwidth over the sizes, against the link's nominal rate or a copy in memory."""
    best = best_bandwidth(reports)
    if best is None:
        return not_applicable("not measured.")
    size, rate = best
    said = f"bus bandwidth {byte_count(rate)}/s in all-reduces of {byte_count(size)}"
    if link is None:
        copy = reports[0].copy_bytes_per_second
        if copy is None:
            return ok(f"{said}.")
        said += f", {percent(rate / copy)} of a copy in memory ({byte_count(copy)}/s)"
        if rate < _LEAST_OF_COPY * copy:
            return warning(f"{said}, less than {percent(_LEAST_OF_COPY)}.",
                           "See who else uses the cores: top -o %CPU")
        return ok(f"{said}.")
    if link.bytes_per_second is None:
        return ok(f"{said}; how fast {link.name} should be is not known.")
    said += f", {percent(rate / link.bytes_per_second)} of {link.name} ({byte_count(link.bytes_per_second)}/s)"
    if rate < _LEAST_OF_NOMINAL * link.bytes_per_second:
        return warning(f"{said}, less than {percent(_LEAST_OF_NOMINAL)}.",
                       "NCCL_DEBUG=INFO shows the way that NCCL takes; over gloo see what else sends there."
                       " The findings on links and variables may say more.")
    return ok(f"{said}.")


def best_bandwidth(reports: Sequence[Report]) -> tuple[int, float] | None:
    """Size and bus bandwidth in bytes a second where it is highest: 2 (ranks - 1) / ranks of the bytes, by the time."""
    factor = 2 * (len(reports) - 1) / len(reports)
    rates = [(factor * each.size_bytes / each.seconds, each.size_bytes) for each in reports[0].timings]
    return (max(rates)[1], max(rates)[0]) if rates and factor else None


def work(reports: Sequence[Report]) -> Seen:
    """A rank whose best time for the same work is well behind the others', beyond what times vary by."""
    bests = {report.rank: min(report.work_seconds) for report in reports if report.work_seconds}
    if not bests:
        return not_applicable("not measured.")
    slow = {rank: best / _others(bests, rank) for rank, best in bests.items()
            if len(bests) > 1 and best > _limit(reports[rank], _others(bests, rank))}
    said = f"the same computation takes {seconds(min(bests.values()))} to {seconds(max(bests.values()))} at best"
    if slow:
        told = "; ".join(f"rank {rank}{_on(reports[rank])} takes {ratio(times)} the time of the others"
                         for rank, times in slow.items())
        return warning(f"{said}: {told}. A step lasts as long as on the slowest rank.",
                       "See what else runs on its machine, its clock speed and heat: top, nvidia-smi -q -d CLOCK")
    return ok(f"{said}; no rank is slow ({_SLOW} x the time of the others, and beyond what its best times vary by).")


def _others(bests: dict[int, float], rank: int) -> float:
    return statistics.median(best for other, best in bests.items() if other != rank)


def _limit(report: Report, others: float) -> float:
    best, _, third, *_ = sorted(report.work_seconds)
    return others * max(_SLOW, 1 + _NOISE_TIMES * (third / best - 1))


def measurements(reports: Sequence[Report], link: Nominal | None) -> dict[str, Any]:
    """What was measured, as plain values (docs/doctor.md has the names)."""
    factor = 2 * (len(reports) - 1) / len(reports)
    return {
        "ranks": len(reports), "backend": reports[0].backend,
        "all_reduce": [{"size_bytes": each.size_bytes, "seconds": each.seconds,
                        "bus_bytes_per_second": factor * each.size_bytes / each.seconds}
                       for each in reports[0].timings],
        "nominal_link": None if link is None else {"name": link.name, "bytes_per_second": link.bytes_per_second},
        "memory_copy_bytes_per_second": reports[0].copy_bytes_per_second,
        "work_seconds": [min(each.work_seconds, default=None) for each in reports],
        "pairs": [{"machines": list(pair), "latency_seconds": found.latency_seconds, "problem": found.problem,
                   "bytes_per_second": found.bytes_per_second, "clock_offset_seconds": found.clock_offset_seconds}
                  for pair, found in links.merged(reports).items()],
        "collectives": {name: {"runs": tally.runs, "claimed": list(tally.claimed), "refused": list(tally.refused)}
                        for name, tally in reports[0].tallies.items()},
    }


def _on(report: Report) -> str:
    return f" on machine {report.machine}" if report.machine else ""


def _devices(reports: Sequence[Report]) -> str:
    names = sorted({report.device for report in reports})
    return f"{len(reports)} x {names[0]}" if len(names) == 1 else ", ".join(names)
