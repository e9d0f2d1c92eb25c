"""Five lines at the end of a run: throughput, the split of the step, memory, the slowest rank, and one advice."""

from __future__ import annotations

from rankwise.monitor.advice import advice
from rankwise.monitor.flops import peak_flops
from rankwise.monitor.usage import Usage
from rankwise.quantities import byte_count, percent, rate, seconds
from rankwise.stepparts import PARTS

_NOTABLE_LAG = 0.02   # of the step


def lines(usage: Usage, *, device_name: str, has_shared_cores: bool = False) -> list[str]:
    """What to show of a run whose steps were spent so."""
    texts = {"throughput": _throughput(usage, device_name), "step": _step(usage), "memory": _memory(usage),
             "slowest rank": _slowest(usage), "advice": advice(usage, has_shared_cores=has_shared_cores).text}
    return [f"{name:<14}{text}" for name, text in texts.items()]


def _throughput(usage: Usage, device_name: str) -> str:
    total = usage.samples_per_second
    each = f" ({rate(total / usage.devices, 'samples')} a device)" if usage.devices > 1 else ""
    return (f"{rate(total, 'samples')}{each}, {seconds(usage.step_seconds)} a step, mean over {usage.steps:,} steps"
            f"{_use(usage, device_name)}")


def _use(usage: Usage, device_name: str) -> str:
    """How much of a GPU is used; nothing where that is not known."""
    busy, flops, peak = usage.known("device_busy"), usage.known("flops_per_second"), peak_flops(device_name)
    found = [f"device busy {percent(busy)}"] if busy is not None else []
    if flops is not None:
        share = f" = {percent(flops / peak)} of its dense 16-bit peak" if peak else ""
        found.append(f"{flops / 1e12:.3g} TFLOP/s a device{share}")
    return "".join(f"; {each}" for each in found)


def _step(usage: Usage) -> str:
    parts = ", ".join(f"{part} {percent(usage.share(part))}{_of_all(usage) if part == 'communication' else ''}"
                      for part in PARTS)
    return f"{parts}  (clock: {usage.clock})"


def _of_all(usage: Usage) -> str:
    """What of the communication is exposed, and what is known of all of it."""
    if usage.ranks == 1:
        return " (scatter, replicate, gather of the forward)" if usage.mean("communication") > 0 else ""
    total = usage.known("communication_total")
    exposed = usage.mean("communication")
    known = ("in all: not measured" if total is None else f"about {seconds(total)} in all, by "
             f"{usage.communication_from}" if total > exposed else "hardly any is hidden")
    return f" exposed ({seconds(exposed)}; {known}; {byte_count(usage.known('wire_bytes'))} sent a rank)"


def _memory(usage: Usage) -> str:
    where = ("peak resident memory of the process" if usage.clock == "host" else "peak allocated by torch")
    everyone = [(bytes_, rank) for rank, devices in enumerate(usage.memory_bytes) for bytes_ in devices]
    first = everyone[0][0]
    if len(everyone) == 1:
        return f"{byte_count(first)}, {where}"
    most, rank = max(everyone[1:])
    return f"first {byte_count(first)}, others at most {byte_count(most)} (rank {rank}); {where}"


def _slowest(usage: Usage) -> str:
    if usage.ranks == 1:
        return "there is one rank"
    lag, waiting = usage.lag_seconds, usage.waiting_seconds
    if lag < _NOTABLE_LAG * usage.step_seconds:
        return f"none: {seconds(lag)} a step lie between the slowest (rank {usage.slowest}) and the others"
    return (f"rank {usage.slowest}: {seconds(lag)} a step behind the others, most of it in {usage.lagging_part}; "
            f"ranks wait {seconds(waiting)} a step for each other")
