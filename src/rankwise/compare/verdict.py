"""The verdict of a comparison in plain words: what to use, why, by how much, and what would change it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rankwise.compare.causes import Loss, losses
from rankwise.compare.machine import Machine
from rankwise.compare.result import Result, Row
from rankwise.compare.words import share
from rankwise.quantities import byte_count, percent, seconds

_OF_THE_CORES = ("computation", "communication", "waiting")   # what takes longer where ranks share cores
_SMALL = 0.05   # of a step: losses below it explain nothing
_MUCH = 1.1     # times the memory: what is said
_HOPELESS = 0.5 # of a speed-up: noise in which nothing can be told
_LOUD = 0.1     # of a speed-up: noise that hides what one wants to see

_WHY = {
    "computation": "forward and backward, which did not get shorter in step with the number of devices",
    "communication": "communication that backward does not hide",
    "waiting": "waiting for the slowest rank",
    "data": "waiting for data",
    "optimizer": "the optimizer's update, which every replica makes in full",
    "other": "other work in the loop body",
}
_CHANGE = {
    "computation": "a larger global batch, if slices of this size do not keep the devices busy",
    "communication": "a faster link (`rankwise plan` tells by how much), or a larger global batch, which sends the "
                     "same gradients less often",
    "waiting": "ranks that are equally fast, with equal work",
    "data": "reading further ahead (num_workers of the loader)",
    "optimizer": "more samples for each update, which costs the same for any number of them",
    "other": "less work beside the step (`rankwise run --profile` shows it)",
}


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The row to use, and what is said, a sentence or two each; an empty one where nothing is to be said."""

    best: Row
    use: str
    why: str
    change: str
    remarks: Sequence[str]

    @property
    def lines(self) -> list[str]:
        return [line for line in (self.use, self.why, self.change, *self.remarks) if line]


def verdict(result: Result) -> Verdict:
    """What follows from the numbers."""
    rows = result.rows
    best = _best(result, rows)
    explained = best if best.layout.devices > 1 else _fastest([row for row in rows if row.layout.devices > 1])
    found = _losses(result, explained) if explained is not None else []
    return Verdict(best=best, use=_use(result, best, rows), why=_why(result, explained, found),
                   change=_change(result, explained, found), remarks=_remarks(result, rows, best))


def _best(result: Result, rows: Sequence[Row]) -> Row:
    """Among the layouts that are not slower than the fastest by more than the noise, the one that asks for least.

    That is the fewest devices, the first precision, and then the fastest. What is another training is left out.
    """
    sound = [row for row in rows if row.sameness is None or row.sameness.is_same]
    fastest = max(sound, key=lambda row: row.speed_up)
    equal = [row for row in sound if row is fastest or not result.is_slower(row.layout, fastest.layout)]
    precisions = [row.layout.amp for row in rows]   # in the order asked for
    return min(equal, key=lambda row: (row.layout.devices, precisions.index(row.layout.amp), -row.speed_up))


def _fastest(rows: Sequence[Row]) -> Row | None:
    return max(rows, key=lambda row: row.speed_up, default=None)


def _use(result: Result, best: Row, rows: Sequence[Row]) -> str:
    baseline = rows[0]
    if best is baseline:
        other = max(rows[1:], key=lambda row: row.speed_up)
        known = "more" if other.is_beyond_noise else "not more"
        undecided = "Undecided, for this machine was too noisy. As it is: " if other.noise > _HOPELESS else ""
        return (f"{undecided}Use {baseline.layout}: nothing that is the same training is faster by more than the "
                f"noise. The fastest other layout is {other.layout}, at {other.speed_up:.2f} times its speed, which is "
                f"{known} than the noise.")
    efficiency = "" if best.efficiency is None else f", an efficiency of {percent(best.efficiency)}"
    steps = f"{seconds(best.step_seconds)} a step instead of {seconds(baseline.step_seconds)}"
    if result.scaling.is_weak:
        steps = f"{seconds(best.step_seconds)} a step of {best.layout.devices} times the samples, instead of " \
                f"{seconds(baseline.step_seconds)}"
    known = "" if best.is_beyond_noise else ", which is not more than the noise"
    return f"Use {best.layout}: {best.speed_up:.2f} times as fast as {baseline.layout} ({steps}){efficiency}{known}."


def _losses(result: Result, row: Row) -> list[Loss]:
    alone = result.alone(row.layout.amp)
    split = result.row(alone).split if alone is not None else None
    if split is None or row.split is None:
        return []
    found = losses(row.split, split, 1 if result.scaling.is_weak else row.layout.devices,
                   waiting=row.waiting_seconds or 0.0)
    return [each for each in found if each.seconds > _SMALL * row.step_seconds]


def _why(result: Result, row: Row | None, found: Sequence[Loss]) -> str:
    if row is None:
        return ""
    if row.split is None:
        return "Why is not known: where a step goes is measured in scripts that use rankwise."
    if not found:
        return f"Why: {row.layout} divides the work with hardly any loss."
    said = ", ".join(f"{seconds(each.seconds)} of {_name(each, row)}" for each in found)
    bound = "the step of one device" if result.scaling.is_weak else "a perfect division"
    return f"Why: beyond {bound}, a step of {row.layout} has {said}."


def _name(loss: Loss, row: Row) -> str:
    """What time goes into; for communication what the mode means by it, if it is not what others do."""
    if loss.of == "communication" and row.communication_meaning:
        return f"communication ({row.communication_meaning})"
    return _WHY[loss.of]


def _change(result: Result, row: Row | None, found: Sequence[Loss]) -> str:
    """What would change the verdict: the cores first, where the devices share them and lose by it."""
    if row is None:
        return ""
    machine, devices = result.machine, row.layout.devices
    if row.split is not None and not found:
        return "What would change it: more devices, for these lose hardly anything."
    loses_by_cores = row.split is None or any(each.of in _OF_THE_CORES for each in found)
    shared = machine.shares_cores(devices) and loses_by_cores
    said = [_shared_cores(machine, devices)] if shared else []
    said += [_CHANGE[each.of] for each in found[:2] if not (shared and each.of in _OF_THE_CORES)]
    return f"What would change it: {'; '.join(said)}." if said else ""


def _shared_cores(machine: Machine, devices: int) -> str:
    threads = machine.threads(1)
    hint = " (--threads 1 compares devices of one core)" if threads != 1 else ""
    return (f"devices with cores of their own, for here one device computes with {threads} "
            f"thread{'s' * (threads != 1)}, and {devices} such devices share {machine.cores} "
            f"core{'s' * (machine.cores != 1)}{hint}")


def _remarks(result: Result, rows: Sequence[Row], best: Row) -> list[str]:
    said = []
    others = [row for row in rows if row.layout.devices == best.layout.devices > 1 and row is not best]
    for row in others:
        if result.is_slower(row.layout, best.layout):
            said.append(f"{row.layout} takes {best.speed_up / row.speed_up:.2f} times as long as {best.layout}.")
        else:
            said.append(f"{row.layout} is as fast as {best.layout}, up to the noise.")
    for row in rows:
        if row.sameness is not None and not row.sameness.is_same:
            said.append(f"{row.layout} is not the same training, it seems: its loss after the last step differs by "
                        f"{row.sameness.difference:.1e}. `rankwise verify` tells why.")
    if best.layout.amp != rows[0].layout.amp and best.loss is not None and rows[0].loss is not None:
        said.append(f"{best.layout.amp} computes with other digits: the loss after the last step is {best.loss:.6g} "
                    f"instead of {rows[0].loss:.6g}. Whether that matters only a whole training shows.")
    loudest = max(row.noise for row in rows[1:])
    if loudest > _LOUD:
        said.append(_noise(result.machine, loudest))
    ours, theirs = best.most_memory_bytes, rows[0].most_memory_bytes
    if ours is not None and theirs is not None and ours > _MUCH * theirs:
        said.append(f"{best.layout} takes more memory: {byte_count(ours)} where it takes the most, instead of "
                    f"{byte_count(theirs)}.")
    return said


def _noise(machine: Machine, loudest: float) -> str:
    busy = (f" The machine had other work before it began ({machine.load:.1f} processes at a time, on {machine.cores} "
            "cores)." if machine.was_busy else "")
    return (f"Differences of up to {share(loudest)} are hidden by noise.{busy} A quiet machine, more --steps or more "
            "--rounds would show smaller ones.")
