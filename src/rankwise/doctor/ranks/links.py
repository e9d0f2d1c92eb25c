"""The links between machines, from what each said of each other one: which machine is bad, or else which link."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rankwise.doctor.finding import Seen, fault, not_applicable, ok, warning
from rankwise.doctor.ranks.report import Pair, Report
from rankwise.quantities import byte_count, percent, seconds

_SLOW_SHARE = 0.4     # of the fastest link; a slow machine makes most links of a small cluster slow
_CLOCKS_SECONDS = 1.0


def merged(reports: Sequence[Report]) -> dict[tuple[int, int], Pair]:
    """Each link once, as the worse of its two ends saw it; with `clock_offset_seconds` of the second to the first."""
    found: dict[tuple[int, int], Pair] = {}
    for report in reports:
        for pair in report.pairs:
            key = (min(report.machine, pair.other), max(report.machine, pair.other))
            if key not in found or _badness(pair) > _badness(found[key]):
                found[key] = pair if report.machine == key[0] else _turned(pair)
    return dict(sorted(found.items()))


def pairs(reports: Sequence[Report]) -> Seen:
    """Every two machines exchange rightly, and about as fast as the fastest two."""
    found = merged(reports)
    if not found:
        return not_applicable("not measured.")
    broken = {key for key, pair in found.items() if pair.problem or pair.is_wrong}
    if broken:
        why = "; ".join(f"{first}-{second}: {found[first, second].problem or 'what arrives is wrong'}"
                        for first, second in sorted(broken)[:4])
        return fault(f"{_who(broken, found)} {_verb(broken, found, 'does', 'do')} not work. {why}.",
                     "Look at its cable, its network card and its firewall; leave it out of the job until then.")
    rates = {key: pair.bytes_per_second for key, pair in found.items() if pair.bytes_per_second}
    fastest = max(rates.values())
    slow = {key for key, rate in rates.items() if rate < _SLOW_SHARE * fastest}
    latency = seconds(max(pair.latency_seconds or 0 for pair in found.values()))
    slowest = f"{byte_count(min(rates.values()))}/s to " if len(rates) > 1 else ""
    said = (f"{len(found)} link{'s' * (len(found) > 1)}, {slowest}{byte_count(fastest)}/s, {latency} at most for a "
            "small message")
    if slow:
        return warning(f"{_who(slow, found)} {_verb(slow, found, 'is', 'are')} slow: less than "
                       f"{percent(_SLOW_SHARE)} of the fastest link. {said}.",
                       "See the speed that the card has agreed on: ethtool <interface>; and who else sends there.")
    return ok(f"{said}.")


def clocks(reports: Sequence[Report]) -> Seen:
    """How far apart the machines' clocks are, as seen over the links."""
    offsets = {key: pair.clock_offset_seconds for key, pair in merged(reports).items()
               if pair.clock_offset_seconds is not None}
    if not offsets:
        return not_applicable("not measured.")
    key, worst = max(offsets.items(), key=lambda each: abs(each[1]))
    said = f"clocks are at most {seconds(abs(worst))} apart (machines {key[0]} and {key[1]})"
    if abs(worst) > _CLOCKS_SECONDS:
        return warning(f"{said}: their logs cannot be put in order.", "sudo timedatectl set-ntp true, on each")
    return ok(f"{said}.")


def bad_machines(bad: set[tuple[int, int]], links: Mapping[tuple[int, int], Pair]) -> list[int]:
    """Machines all of whose links are bad, where the links without them are not; none where a link is bad alone.

    Two machines have one link, which says nothing of either.
    """
    machines = sorted({machine for key in links for machine in key})
    suspects = [machine for machine in machines if len(machines) > 2
                and all(key in bad for key in links if machine in key)]
    explains_all = all(set(key) & set(suspects) for key in bad)
    return suspects if suspects and explains_all and len(suspects) < len(machines) - 1 else []


def _who(bad: set[tuple[int, int]], links: Mapping[tuple[int, int], Pair]) -> str:
    machines = bad_machines(bad, links)
    if machines:
        return f"Machine {', '.join(map(str, machines))}"
    return "The link between machines " + ", ".join(f"{first} and {second}" for first, second in sorted(bad))


def _verb(bad: set[tuple[int, int]], links: Mapping[tuple[int, int], Pair], one: str, several: str) -> str:
    return several if len(bad_machines(bad, links) or bad) > 1 else one


def _badness(pair: Pair) -> tuple[bool, float]:
    return bool(pair.problem or pair.is_wrong), -(pair.bytes_per_second or 0.0)


def _turned(pair: Pair) -> Pair:
    offset = pair.clock_offset_seconds
    return Pair(other=pair.other, problem=pair.problem, is_wrong=pair.is_wrong, latency_seconds=pair.latency_seconds,
                bytes_per_second=pair.bytes_per_second, clock_offset_seconds=None if offset is None else -offset)
