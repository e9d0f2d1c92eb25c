"""What the table and the page of a comparison both say in words: how it was measured, and what its columns mean."""

from __future__ import annotations

import statistics

from rankwise.compare.result import Result, Row
from rankwise.compare.rounds import WARM_UP
from rankwise.compare.sameness import Sameness
from rankwise.quantities import percent


def headline(result: Result) -> str:
    """What was compared, and how it scales."""
    return (f"{result.target}: {len(result.rows)} layouts, {result.rounds} rounds of {result.measured_steps} steps "
            f"each, after {WARM_UP} to warm up. {result.scaling.meaning}")


def noise_in_words(result: Result) -> str:
    """What A/A showed, and how it is used."""
    apart = [max(ratio, 1 / ratio) - 1 for ratio in result.control]
    return ("Spread: highest less lowest round, beside the median. ±, and noise: how far chance alone may move a "
            "speed-up, from its scatter over the rounds and from A/A: "
            f"{result.measurements.baseline.layout}, run twice in each round, differed from itself by "
            f"{share(statistics.median(apart))} in the middle round and by {share(max(apart))} in the worst.")


def share(value: float) -> str:
    """`12 %`, and from 200 % on `3.4 times`."""
    return percent(value) if value < 2 else f"{value:.1f} times"


def difference(row: Row) -> str:
    """How far the loss is from that of one device."""
    if row.sameness is None:
        return "-"
    same = row.sameness
    return "none" if same.difference == 0 else f"{same.difference:.1e}{'' if same.is_same else ' (!)'}"


def notes(result: Result) -> list[str]:
    """What has to be known to read the numbers: meanings of columns, what is missing, and what was not seen."""
    rows = result.rows
    found = [_communication(result), _memory(result), _loss(result), _threads(result), _steps(result),
             *(f"{row.layout} has {row.rounds} of {result.rounds} rounds; then it failed: {row.failure}"
               for row in rows if row.failure),
             *(f"{each.layout} could not run: {each.reason}" for each in result.missing)]
    if all(row.split is None for row in rows):
        found.append("Where a step goes was not measured: the script does not use rankwise.")
    return [note for note in found if note]


def meanings(result: Result) -> dict[str, str]:
    """For each mode that communicates, what counts as communication in it, and what told how much there is in all."""
    return {row.layout.mode: row.communication_meaning + (f" (in all: from {row.communication_from})"
                                                          if row.communication_from else "")
            for row in result.rows if row.communication_meaning and row.split is not None}


def _communication(result: Result) -> str:
    found = meanings(result)
    said = "; ".join(f"in {mode} it is {meaning}" for mode, meaning in found.items())
    return f"Communication: {said}." if said else ""


def _threads(result: Result) -> str:
    rows = result.rows
    if rows[0].threads is None:
        return ""
    numbers = {number: [str(row.layout) for row in rows if row.threads == number]
               for number in dict.fromkeys(row.threads for row in rows)}
    said = "; ".join(f"{number} in {', '.join(layouts)}" for number, layouts in numbers.items())
    return f"CPU threads of each process, on {result.machine.cores} cores: {said}."


def _steps(result: Result) -> str:
    if result.measured_steps == result.steps:
        return ""
    return (f"The training ended after {WARM_UP + result.measured_steps} steps, so that {result.measured_steps} were "
            f"measured instead of {result.steps}.")


def _memory(result: Result) -> str:
    what = "resident memory of a process" if result.machine.kind == "cpu" else "memory of a device"
    return f"Memory: the peak {what}; of the first one, and of the one with the most."


def _loss(result: Result) -> str:
    if result.scaling.is_weak:
        return "Loss: not compared, for the global batch is another in each layout."
    found: list[Sameness] = [row.sameness for row in result.rows if row.sameness is not None]
    if not found:
        return ""
    worst = max(found, key=lambda each: each.difference)
    largest = f"{worst.difference:.1e}" if worst.difference else "none at all"
    said = (f"Loss: after the last step, against one device in the same precision; the largest relative difference is "
            f"{largest}")
    if any(each.noise for each in found):
        said += (f". One device differs from itself by {max(each.noise for each in found):.1e}: something is not "
                 "seeded, or sums have no fixed order")
    if all(each.is_same for each in found):
        return f"{said}: the same training, as far as one loss tells (`rankwise verify` looks at every step)."
    return f"{said}: not the same training. `rankwise verify` tells why."
