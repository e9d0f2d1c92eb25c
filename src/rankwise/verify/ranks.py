"""What the ranks of one layout show by themselves: all of them must hold the same weights and take the same steps."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rankwise.verify.compare import relative
from rankwise.verify.evidence import Evidence, Rank
from rankwise.verify.findings import Finding
from rankwise.witness.record import ENOUGH

_SAME_NORM = 1e-6   # of gradients before clipping, which equal ranks compute from equal bits


def findings(evidence: Evidence) -> list[Finding]:
    """What is wrong between the ranks of a layout, the cause of the rest first."""
    ends = list(_ends(evidence))
    if not evidence.steps:
        return ends
    checks: list[Callable[[Evidence], Iterator[Finding]]] = [_start, _rates, _settings, _weights, _clips, _buffers]
    found = ends + [finding for check in checks for finding in check(evidence)]
    explained = {finding.code for finding in found} & {"learning_rate_on_ranks", "settings", "collectives"}
    return [finding for finding in found if not (explained and finding.code == "weights_part")]


def _ends(evidence: Evidence) -> Iterator[Finding]:
    made = {rank: len(each.steps) for rank, each in enumerate(evidence.ranks)}
    told = "; ".join(f"rank {rank}: {steps} steps, {_how(evidence.ranks[rank])}" for rank, steps in made.items())
    behind = tuple(rank for rank, each in enumerate(evidence.ranks)
                   if each.how == "returned" and made[rank] < max(made.values()))
    early = behind or tuple(rank for rank, each in enumerate(evidence.ranks) if each.how == "returned")
    if evidence.ended_well and not behind:
        return
    stuck = [rank for rank in evidence.ranks if rank.how == "stuck"]
    compared = next((rank.error for rank in evidence.ranks if re.match(r"Ranks \d+ and \d+ call ", rank.error)), None)
    left = tuple(rank for rank, each in enumerate(evidence.ranks) if not each.begun)
    if compared is not None and 0 < len(left) < len(made):
        yield Finding(code="unequal_steps", seen=f"{told}.\n  {compared.rpartition(chr(10))[0]}", ranks=left,
                      step=min(made.values()) + 1, cause=f"{_listed(left)} left the loop, while others began a step "
                      "more.")
    elif compared is not None:
        yield Finding(code="collectives", step=min(made.values()) + 1, cause="The ranks call different collectives, or "
                      "the same ones in another order.", seen=compared.rpartition("\n")[0])
    elif early and (behind or len(early) < len(made)):
        yield Finding(code="unequal_steps", seen=f"{told}.", ranks=early, step=min(made.values()),
                      cause=f"{_listed(early)} had no more batches while others went on and waited for it.")
    elif stuck:
        yield Finding(code="stuck", seen=f"{told}.", step=min(made.values()) + 1,
                      cause="The ranks wait for each other in different places, or one of them waits for ever.")
    else:
        yield Finding(code="could_not_run", seen=told + ".", cause=evidence.failure or "A rank ended without a word.")


def _how(rank: Rank) -> str:
    if rank.how == ENOUGH:
        return "made all that were asked for"
    waits = f", waiting at {rank.where}" if rank.where else ""
    told = {"returned": "then its script ended", "vanished": "then its process was ended"}
    return told.get(rank.how, rank.how) + waits


def _start(evidence: Evidence) -> Iterator[Finding]:
    """Weights before the first update."""
    name, ranks = _differing([rank.states[0].parameters for rank in evidence.ranks if 0 in rank.states])
    if name is not None:
        yield Finding(code="weights_differ_at_start", step=1, tensor=name, ranks=ranks,
                      seen=f"Before the first update {_listed(ranks)} held another `{name}` than rank 0.",
                      cause="The ranks drew their weights from different seeds, or changed them after the model was "
                            "wrapped, which is when rank 0's are copied.")


def _rates(evidence: Evidence) -> Iterator[Finding]:
    for number in range(1, evidence.steps + 1):
        steps = evidence.at(number)
        ranks = tuple(rank for rank, step in enumerate(steps) if list(step.lr) != list(steps[0].lr))
        if ranks:
            numbers = {tuple(step.plateaus) for each in range(1, number + 1) for step in evidence.at(each)}
            by_plateau = any(numbers - {()}) and any(
                len({tuple(step.plateaus) for step in evidence.at(each)}) > 1 for each in range(1, number + 1))
            why = ("ReduceLROnPlateau was given another number on each rank." if by_plateau
                   else "A schedule follows a number that each rank has for itself.")
            yield Finding(code="learning_rate_on_ranks", step=number, ranks=ranks, cause=why,
                          seen=f"In step {number} the learning rate was {_rates_of(evidence, number)}.")
            return


def _rates_of(evidence: Evidence, number: int) -> str:
    return ", ".join(f"{step.lr[0] if step.lr else None:g} on rank {rank}"
                     for rank, step in enumerate(evidence.at(number)))


def _settings(evidence: Evidence) -> Iterator[Finding]:
    for number in range(1, evidence.steps + 1):
        plain = [[{name: value for name, value in group.items() if name not in ("lr", "initial_lr")}
                  for group in step.settings] for step in evidence.at(number)]
        ranks = tuple(rank for rank, each in enumerate(plain) if each != plain[0])
        if ranks:
            yield Finding(code="settings", step=number, ranks=ranks,
                          seen=f"In step {number} the optimizer of {_listed(ranks)} had other settings than rank 0's: "
                               f"{different(plain[0], plain[ranks[0]])}.",
                          cause="The optimizer was built with settings that depend on the rank.")
            return


def different(ours: Sequence[Mapping[str, Any]], theirs: Sequence[Mapping[str, Any]]) -> str:
    """The first setting that differs between two optimizers."""
    for group, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        for name in one:
            if one[name] != other.get(name):
                return f"{name} of group {group} is {one[name]} and {other.get(name)}"
    return "another number of parameter groups"


def _weights(evidence: Evidence) -> Iterator[Finding]:
    """The first step whose gradients or weights differ between ranks."""
    for number in range(1, evidence.steps + 1):
        gradients = [{name: bits for name, (_, bits) in step.gradients.items()} for step in evidence.at(number)]
        name, ranks = _differing(gradients)
        if name is not None:
            yield _not_reduced(evidence, number, name, ranks, gradients)
            return
        states = [rank.states.get(number) for rank in evidence.ranks]
        name, ranks = _differing([state.parameters for state in states if state is not None])
        if name is not None and _differing([rank.states[0].parameters for rank in evidence.ranks])[0] is None:
            yield Finding(code="weights_part", step=number, tensor=name, ranks=ranks,
                          seen=f"After step {number} {_listed(ranks)} held another `{name}` than rank 0, though the "
                               "gradients were equal.",
                          cause="The update differs between ranks (settings, or weights changed by hand).")
            return


def _not_reduced(evidence: Evidence, number: int, name: str, ranks: tuple[int, ...],
                 gradients: list[dict[str, str]]) -> Finding:
    names = list(gradients[0])
    differing = [each for each in names if len({rank.get(each) for rank in gradients}) > 1]
    seen = (f"In step {number} the gradients of {_some(differing)} were not the same on all ranks "
            f"({len(differing)} of {len(names)} tensors).")
    if len(differing) == len(names):
        return Finding(code="not_reduced", step=number, tensor=name, ranks=ranks, seen=seen,
                       cause="No gradient was averaged over the ranks: the backward pass went past the wrapper.")
    return Finding(code="not_reduced_partly", step=number, tensor=name, ranks=ranks, seen=seen,
                   cause="These parameters are not among those that the wrapper knows: they came, or were unfrozen, "
                         "after the model was wrapped; or their layers were called past it.")


def _clips(evidence: Evidence) -> Iterator[Finding]:
    for number in range(1, evidence.steps + 1):
        clips = [[total for total, _ in step.clips] for step in evidence.at(number)]
        ranks = tuple(rank for rank, totals in enumerate(clips) if len(totals) != len(clips[0]) or any(
            relative(a, b) > _SAME_NORM for a, b in zip(clips[0], totals, strict=False)))
        if ranks:
            norms = ", ".join(f"{totals[0]:.6g} on rank {rank}" for rank, totals in enumerate(clips) if totals)
            yield Finding(code="clip_per_rank", step=number, ranks=ranks,
                          seen=f"In step {number} the norm that gradients were clipped by was {norms}.",
                          cause="Gradients were clipped on each rank for itself, before they were averaged.")
            return


def _buffers(evidence: Evidence) -> Iterator[Finding]:
    for number in range(1, evidence.steps + 1):
        states = [rank.states.get(number) for rank in evidence.ranks]
        name, ranks = _differing([state.buffers for state in states if state is not None])
        if name is not None:
            yield Finding(code="buffers_part", step=number, tensor=name, ranks=ranks,
                          seen=f"After step {number} {_listed(ranks)} held another buffer `{name}` than rank 0.",
                          cause="It is computed from each rank's own rows, and nothing makes it equal.")
            return


def _differing(tensors: list[Any]) -> tuple[str | None, tuple[int, ...]]:
    """The first name under which ranks hold different bits, and the ranks that differ from rank 0."""
    for name in tensors[0] if tensors else ():
        ranks = tuple(rank for rank, each in enumerate(tensors) if each.get(name) != tensors[0][name])
        if ranks:
            return name, ranks
    return None, ()


def _listed(ranks: tuple[int, ...]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _some(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names[:3]) + (" and others" if len(names) > 3 else "")
