"""What became of the samples: repeated, padded, dropped, in another order, or changed."""

from __future__ import annotations

from collections import Counter

from rankwise.verify.evidence import Evidence
from rankwise.verify.findings import Finding


def finding(reference: Evidence, other: Evidence, step: int) -> Finding:
    """Why the global batch of `step` is not the reference's."""
    expected, found = reference.samples(step), other.samples(step)
    per_rank = [each.samples for each in other.at(step)]
    code, cause = _why(reference, other, step, per_rank)
    counts = " + ".join(str(rank.total()) for rank in per_rank)
    return Finding(code=code, step=step, cause=cause, seen=(
        f"Step {step} had {found.total()} samples ({counts} on the ranks), the reference {expected.total()}; "
        f"{(expected & found).total()} of them are the same."))


def _why(reference: Evidence, other: Evidence, step: int, per_rank: list[Counter[str]]) -> tuple[str, str]:
    expected, found, known = reference.samples(step), other.samples(step), _all(reference)
    more, fewer, world = found - expected, expected - found, len(per_rank)
    if world > 1 and all(rank == expected for rank in per_rank):
        return "samples_repeated", ("Every rank takes the whole batch: the data is not split over the ranks, and they "
                                    "do the same work.")
    if found.total() > expected.total() and not fewer and step > 1 and set(more) <= known:
        return "samples_padded", "Samples were repeated to give each rank equally many."
    if _shared(per_rank, expected) or _overlap(reference, other):
        return "samples_overlap", ("Ranks hold the same samples in one epoch: each draws an order of its own, from an "
                                   "unseeded shuffle or a seed that depends on the rank.")
    if step == 1 and world > 1 and found.total() == world * expected.total():
        return "batch_size_scaled", ("The batch size is each rank's own, so the global batch grows with the number of "
                                     "ranks: fewer and larger steps, another training.")
    if found.total() > expected.total() and not fewer:
        return "samples_padded", "Samples were repeated to give each rank equally many."
    if found.total() < expected.total() and not more:
        return "samples_dropped", "Samples were left out, so that each rank has equally many."
    if not set(found) & known:
        return "samples_changed", ("Not one sample has the content of any in the reference: augmentation, noise or "
                                   "data is drawn by rank or by worker.")
    return "samples_order", "The order of the samples depends on the number of ranks, or on a seed that is not set."


def _shared(per_rank: list[Counter[str]], expected: Counter[str]) -> bool:
    """Whether a sample is on two ranks that the reference's batch holds once, or not at all."""
    holders = Counter(sample for rank in per_rank for sample in rank)
    return any(count > max(1, expected[sample]) for sample, count in holders.items())


def _overlap(reference: Evidence, other: Evidence) -> bool:
    """Whether two ranks hold one sample in the reference's first epoch, which ends where a sample comes again."""
    seen: Counter[str] = Counter()
    holders: dict[str, int] = {}
    for step in range(1, min(reference.steps, other.steps) + 1):
        expected, found = reference.samples(step), other.samples(step)
        seen += expected
        if max(seen.values(), default=0) > 1 or expected.total() != found.total():
            return False
        for rank, each in enumerate(other.at(step)):
            if any(holders.setdefault(sample, rank) != rank for sample in each.samples):
                return True
    return False


def _all(reference: Evidence) -> set[str]:
    return {sample for step in range(1, reference.steps + 1) for sample in reference.samples(step)}
