"""One piece of advice from what the steps were spent on: what holds the training back most, and what changes it."""

from __future__ import annotations

from typing import NamedTuple

from rankwise.monitor.usage import Usage
from rankwise.quantities import byte_count, percent, seconds

_NOTABLE = 0.15      # of the step
_IDLE = 0.6          # a device that runs kernels for less of the time
_SHORT_SECONDS = 2e-3
_SMALL_BYTES = 1e6   # a single bucket of DDP, its first


class Advice(NamedTuple):
    """What was found, in a word; the part of the step that it costs; and what to do."""

    finding: str
    share: float
    text: str


def advice(usage: Usage, *, has_shared_cores: bool = False) -> Advice:
    """The dearest of what can be changed; `has_shared_cores` says that ranks on CPUs outnumber these."""
    found = [each for judge in (_data, _imbalance, _communication, _launches) if (each := judge(usage))]
    if not found:
        return _fine(usage)
    worst = max(found, key=lambda each: each.share)
    if has_shared_cores and worst.finding in ("imbalance", "communication-bound"):
        return worst._replace(text=f"{worst.text} The ranks share too few cores: --devices with a smaller number may "
                                   "be as fast.")
    return worst


def _data(usage: Usage) -> Advice | None:
    share = min(usage.of_rank(rank, "data") for rank in range(usage.ranks)) / usage.step_seconds   # on every rank
    if share < _NOTABLE:
        return None
    return Advice("data-bound", share, f"data-bound: {percent(share)} of the step waits for data. Read beside the "
                  "training, run.loader(..., num_workers=4), or keep the data in memory as tensors.")


def _imbalance(usage: Usage) -> Advice | None:
    share = usage.waiting_seconds / usage.step_seconds
    if usage.ranks == 1 or share < _NOTABLE or usage.lag_seconds < share * usage.step_seconds / 2:
        return None
    part = usage.lagging_part
    remedy = ("run.loader(..., num_workers=4) there, or a faster disk." if part == "data" else
              "look for what the script does on this rank alone, and for what else runs on its device; --threads sets "
              "each rank's CPU threads.")
    return Advice("imbalance", share, f"imbalance: the others wait {percent(share)} of the step for rank "
                  f"{usage.slowest}, which is {seconds(usage.lag_seconds)} slower in {part}: {remedy}")


def _communication(usage: Usage) -> Advice | None:
    exposed = usage.mean("communication") if usage.ranks == 1 else usage.transport_seconds
    share = exposed / usage.step_seconds
    if share < _NOTABLE:
        return None
    if usage.ranks == 1:
        return Advice("communication-bound", share, f"communication-bound: {percent(share)} of the step scatters, "
                      "replicates and gathers. --mode ddp does without.")
    sent = usage.known("wire_bytes") or 0.0
    if sent < _SMALL_BYTES:
        return Advice("communication-bound", share, f"communication-bound: {percent(share)} of the step goes into the "
                      f"exchange of {byte_count(sent)}, which is the cost of a message rather than of its bytes. A "
                      "larger batch_size computes more for each exchange; fewer --devices have less of it.")
    return Advice("communication-bound", share, f"communication-bound: {percent(share)} of the step waits for "
                  "gradients on their way. A larger batch_size computes more for each of them; fewer --devices send "
                  "less; run.prepare(model, bucket_mb=...) sets what is sent at once.")


def _launches(usage: Usage) -> Advice | None:
    busy = usage.known("device_busy")
    if busy is not None:
        if busy >= _IDLE or usage.share("data") >= _NOTABLE:
            return None
        return Advice("launch-bound", 1 - busy, f"launch-bound: the device runs kernels {percent(busy)} of the time. "
                      "A larger batch_size or --micro-batch gives each launch more to do; torch.compile(model) "
                      "launches less; --amp bf16 makes it shorter still.")
    if usage.ranks == 1 or usage.step_seconds > _SHORT_SECONDS:
        return None
    return Advice("launch-bound", 1 - usage.share("forward") - usage.share("backward"),
                  f"launch-bound: a step of {seconds(usage.step_seconds)} is mostly overhead. A larger batch_size "
                  "gives each step more to do; fewer --devices have less of it.")


def _fine(usage: Usage) -> Advice:
    computing = usage.share("forward") + usage.share("backward")
    return Advice("all fine", 0.0, f"all fine: {percent(computing)} of the step is forward and backward. "
                  + ("More --devices may pay: rankwise compare TARGET measures it." if usage.ranks == 1
                     else "rankwise plan TARGET tells where more --devices stop paying."))

