"""The GPUs: memory that is taken, errors, heat, who else is on them, and how they reach each other."""

from __future__ import annotations

from collections.abc import Callable

from rankwise.doctor.facts import Facts
from rankwise.doctor.facts.gpus import Gpu
from rankwise.doctor.finding import Seen, fault, not_applicable, ok, warning
from rankwise.quantities import byte_count, percent

_NONE = not_applicable("no GPU that NVML shows.")
_FREE_SHARE = 0.9
_EXCLUSIVE, _PROHIBITED = 3, 2   # compute modes of NVML


def memory(facts: Facts) -> Seen:
    """Most of the memory of each GPU is free before a training begins."""
    found = facts.gpus.found
    if not found:
        return _NONE
    full = _which(facts, lambda gpu: gpu.free_bytes is not None and gpu.total_bytes is not None
                  and gpu.free_bytes < _FREE_SHARE * gpu.total_bytes)
    said = "; ".join(f"GPU {index}: {byte_count(gpu.free_bytes)} of {byte_count(gpu.total_bytes)} free"
                     for index, gpu in enumerate(found))
    if full:
        return warning(f"{said}. On GPU {_listed(full)} less than {percent(_FREE_SHARE)} is.",
                       "nvidia-smi shows who holds it; end that process, or leave that GPU out with "
                       "CUDA_VISIBLE_DEVICES.")
    return ok(f"{said}.")


def ecc(facts: Facts) -> Seen:
    """Uncorrected memory errors make a training fail, or compute what is wrong."""
    if not facts.gpus.found:
        return _NONE
    broken = _which(facts, lambda gpu: bool(gpu.uncorrected_errors))
    pending = _which(facts, lambda gpu: bool(gpu.rows_to_remap))
    off = _which(facts, lambda gpu: gpu.ecc_is_on is False)
    if broken:
        return fault(f"Uncorrected memory errors since the driver was loaded on GPU {_listed(broken)}: "
                     f"{', '.join(str(facts.gpus.found[index].uncorrected_errors) for index in broken)}.",
                     "Leave that GPU out, reset it (nvidia-smi --gpu-reset -i N, with nothing on it), and have it "
                     "replaced if they come again.")
    if pending:
        return warning(f"A faulty row of memory waits for its replacement on GPU {_listed(pending)}.",
                       "nvidia-smi --gpu-reset -i N, with nothing on it")
    if off:
        return warning(f"ECC is switched off on GPU {_listed(off)}: errors of memory go unseen.",
                       "sudo nvidia-smi -e 1, then reboot")
    return ok("no uncorrected memory errors; ECC is on where a GPU has it.")


def throttling(facts: Facts) -> Seen:
    """Whether a GPU runs slower than it could, just now."""
    if not facts.gpus.found:
        return _NONE
    slow = _which(facts, lambda gpu: bool(gpu.slow_downs))
    capped = _which(facts, lambda gpu: gpu.is_power_capped)
    if slow:
        said = "; ".join(f"GPU {index}: {', '.join(facts.gpus.found[index].slow_downs)}, "
                         f"{_degrees(facts.gpus.found[index])}" for index in slow)
        return warning(f"Slowed down. {said}.", "See to its cooling and power: nvidia-smi -q -d PERFORMANCE,POWER")
    if capped:
        return ok(f"GPU {_listed(capped)} is at its power limit, as a busy one is; none is slowed down by heat.")
    return ok("no GPU is slowed down.")


def others(facts: Facts) -> Seen:
    """Whether other processes compute on the GPUs, and whether ours may."""
    if not facts.gpus.found:
        return _NONE
    closed = _which(facts, lambda gpu: gpu.compute_mode == _PROHIBITED)
    if closed:
        return fault(f"No process may compute on GPU {_listed(closed)}: its compute mode is `prohibited`.",
                     "sudo nvidia-smi -c 0")
    busy = _which(facts, lambda gpu: bool(gpu.other_processes))
    if busy:
        said = "; ".join(f"GPU {index}: process {', '.join(map(str, facts.gpus.found[index].other_processes))}"
                         for index in busy)
        locked = [index for index in busy if facts.gpus.found[index].compute_mode == _EXCLUSIVE]
        if locked:
            return fault(f"{said}; GPU {_listed(locked)} takes one process at a time.", "End it, or: nvidia-smi -c 0")
        return warning(f"Other processes are there. {said}.", "nvidia-smi shows them; end them, or choose other GPUs "
                       "with CUDA_VISIBLE_DEVICES.")
    mig = _which(facts, lambda gpu: gpu.has_mig)
    if mig:
        return warning(f"GPU {_listed(mig)} is cut into parts (MIG), of which a process can use one.",
                       "sudo nvidia-smi -mig 0, to have the whole one")
    return ok("no other process is on the GPUs.")


def links(facts: Facts) -> Seen:
    """Whether each GPU can read the memory of the others, and over what."""
    found = facts.gpus.found
    if not found:
        return _NONE
    narrow = _which(facts, lambda gpu: gpu.pcie_width is not None and gpu.pcie_widest is not None
                    and gpu.pcie_width < gpu.pcie_widest)
    if narrow:
        said = "; ".join(f"GPU {index}: {found[index].pcie_width} of {found[index].pcie_widest} lanes"
                         for index in narrow)
        return warning(f"PCIe is narrower than the GPU allows. {said}.",
                       "Another slot, or the board's settings; a slot that has no more lanes is as it is.")
    said = ", ".join(sorted({_link(gpu) for gpu in found}))
    if len(found) == 1:
        return ok(f"one GPU, {said}.")
    apart = facts.gpus.without_peer_access
    if apart:
        pairs = ", ".join(f"{first}-{second}" for first, second in apart[:8])
        return warning(f"{said}; no direct access between GPU {pairs}: what they exchange goes through the host.",
                       "nvidia-smi topo -p2p r shows why; on a machine of one's own often ACS or IOMMU of the board.")
    return ok(f"{said}; every GPU reaches the memory of every other one.")


def _which(facts: Facts, has: Callable[[Gpu], bool]) -> list[int]:
    return [index for index, gpu in enumerate(facts.gpus.found) if has(gpu)]


def _listed(indices: list[int]) -> str:
    return ", ".join(map(str, indices))


def _degrees(gpu: Gpu) -> str:
    return "temperature not known" if gpu.temperature_celsius is None else f"{gpu.temperature_celsius} °C"


def _link(gpu: Gpu) -> str:
    if gpu.nvlinks:
        return f"NVLink {gpu.nvlink_version or '(version not known)'}, {gpu.nvlinks} links"
    if gpu.pcie_generation is None:
        return "link not known"
    return f"PCIe {gpu.pcie_generation}, {gpu.pcie_width or '?'} lanes"
