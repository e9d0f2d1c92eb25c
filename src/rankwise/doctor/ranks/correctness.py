"""Whose results were wrong: from what every rank saw, the rank that computes wrongly, or whose part arrives wrong."""

from __future__ import annotations

from collections.abc import Sequence

from rankwise.doctor.finding import Seen, fault, not_applicable, ok
from rankwise.doctor.ranks.report import Report, Wrong
from rankwise.world import listed, ranks_in_words

_REMEDY = ("Leave that device out of the job and run this again: memory errors (nvidia-smi -q -d ECC), or a broken "
           "link or library. What was trained there is not to be trusted.")


def collective(name: str, reports: Sequence[Report]) -> Seen:
    """One kind of collective over all ranks."""
    ran = [report for report in reports if name in report.tallies]
    if not ran:
        return not_applicable("not run.")
    claims = {report.rank: report.tallies[name].claimed for report in ran}
    apart = [rank for rank, claimed in claims.items() if claimed != ran[0].tallies[name].claimed]
    if apart:
        return fault(f"{ranks_in_words(apart)} took other dtypes than rank {ran[0].rank}.",
                     "Install the same torch on every machine.")
    wrongs = {report.rank: [each for each in report.wrongs if each.collective.startswith(name)] for report in ran}
    wrongs = {rank: found for rank, found in wrongs.items() if found}
    if wrongs:
        return fault(f"{_whose(wrongs, len(ran))} {_what(wrongs)}", _REMEDY)
    tally = ran[0].tallies[name]
    return ok(f"{tally.runs} runs a rank came out exactly, on {_claimed(tally.claimed)}."
              f"{_refused(ran[0].backend, tally.claimed, tally.refused)}")


def _whose(wrongs: dict[int, list[Wrong]], ranks: int) -> str:
    sources = {each.source for found in wrongs.values() for each in found}
    if len(sources) == 1 and None not in sources and len(wrongs) > 1:
        whose = listed([source for source in sources if source is not None])
        return f"What rank {whose} sends arrives wrong on rank {listed(sorted(wrongs))}."
    if len(wrongs) < ranks:
        others = "the others" if ranks - len(wrongs) > 1 else "the other one"
        return f"{ranks_in_words(sorted(wrongs))} got a wrong result, where {others} got the right one."
    return ("Every rank got a wrong result: one of them brings a wrong part; a broadcast or a gathering shows whose, "
            "unless it goes wrong in the sum alone.")


def _what(wrongs: dict[int, list[Wrong]]) -> str:
    kinds = sorted({f"{each.collective} of {each.elements} {each.dtype}" for found in wrongs.values()
                    for each in found})
    more = f" and {len(kinds) - 3} more" if len(kinds) > 3 else ""
    return f"Wrong: {', '.join(kinds[:3])}{more}."


def _dtypes(labels: Sequence[str]) -> list[str]:
    return sorted({label.rpartition(" ")[2] for label in labels})


def _claimed(claimed: Sequence[str]) -> str:
    return ", ".join(_dtypes(claimed)) or "no dtype"


def _refused(backend: str, claimed: Sequence[str], refused: Sequence[str]) -> str:
    """What the backend does not take: whole dtypes, and others for some kinds only."""
    never = sorted(set(_dtypes(refused)) - set(_dtypes(claimed)))
    partly: dict[str, list[str]] = {}
    for label in refused:
        kind, _, dtype = label.rpartition(" ")
        if dtype not in never:
            partly.setdefault(kind, []).append(dtype)
    of: dict[str, list[str]] = {}
    for kind, dtypes in partly.items():
        of.setdefault("any" if set(dtypes) == set(_dtypes(claimed)) else ", ".join(dtypes), []).append(kind)
    said = [", ".join(never)] if never else []
    said += [f"{' and '.join(kinds)} of {dtypes}" for dtypes, kinds in of.items()]
    return f" {backend} does not take: {'; '.join(said)}." if said else ""
