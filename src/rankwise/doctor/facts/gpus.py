"""NVIDIA's GPUs and their driver, as NVML says, which is what nvidia-smi shows. Needs neither torch nor CUDA."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

_PCI = Path("/sys/bus/pci/devices")
_NVIDIA, _DISPLAY = "0x10de", "0x03"   # of the PCI ids: the vendor, and the class of display controllers
_KERNEL_MODULE = Path("/proc/driver/nvidia/version")
_SLOW_DOWN = {8: "hardware slow-down", 32: "too hot (software)", 64: "too hot (hardware)", 128: "power brake"}
_POWER_CAP = 4   # both as nvmlClocksEventReason... of NVML's header numbers them


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU; None stands for what it does not tell."""

    name: str
    total_bytes: int | None
    free_bytes: int | None
    ecc_is_on: bool | None
    uncorrected_errors: int | None          # since the driver was loaded
    rows_to_remap: bool | None              # a faulty row is replaced at the next reset
    slow_downs: tuple[str, ...]
    is_power_capped: bool
    temperature_celsius: int | None
    other_processes: tuple[int, ...]        # process ids, as NVML sees them
    compute_mode: int | None                # 0: any number of processes
    has_mig: bool
    pcie_width: int | None
    pcie_widest: int | None
    pcie_generation: int | None             # the highest that GPU and slot have
    nvlinks: int
    nvlink_version: int | None


@dataclass(frozen=True, kw_only=True)
class Gpus:
    """All GPUs of this machine. `problem` is why NVML cannot tell; `in_slots` counts them on the PCI bus."""

    problem: str = ""
    driver: str | None = None
    driver_cuda: str | None = None          # the newest CUDA that this driver knows
    in_slots: int = 0
    has_kernel_module: bool = False
    found: tuple[Gpu, ...] = ()
    without_peer_access: tuple[tuple[int, int], ...] = ()


def read() -> Gpus:
    """Ask NVML, and the PCI bus where NVML does not answer."""
    in_slots, has_module = _in_slots(), _KERNEL_MODULE.exists()
    try:
        import pynvml
        pynvml.nvmlInit()
    except Exception as error:   # the library is missing, or of another version than the kernel's module
        return Gpus(problem=str(error), in_slots=in_slots, has_kernel_module=has_module)
    try:
        cuda = pynvml.nvmlSystemGetCudaDriverVersion_v2()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return Gpus(driver=pynvml.nvmlSystemGetDriverVersion(), driver_cuda=f"{cuda // 1000}.{cuda % 1000 // 10}",
                    in_slots=in_slots, has_kernel_module=has_module,
                    found=tuple(_gpu(pynvml, handle) for handle in handles),
                    without_peer_access=_without_peer_access(pynvml, handles))
    finally:
        pynvml.nvmlShutdown()


def _gpu(nvml: Any, handle: Any) -> Gpu:
    def asked(name: str, *arguments: Any) -> Any:
        return _asked(lambda: getattr(nvml, name)(handle, *arguments))

    memory, ecc = asked("nvmlDeviceGetMemoryInfo"), asked("nvmlDeviceGetEccMode")
    reasons = asked("nvmlDeviceGetCurrentClocksThrottleReasons") or 0
    processes = asked("nvmlDeviceGetComputeRunningProcesses") or []
    rows = asked("nvmlDeviceGetRemappedRows")
    mig = asked("nvmlDeviceGetMigMode")
    links = [link for link in range(nvml.NVML_NVLINK_MAX_LINKS) if asked("nvmlDeviceGetNvLinkState", link)]
    return Gpu(
        name=asked("nvmlDeviceGetName") or "unknown", total_bytes=memory and memory.total,
        free_bytes=memory and memory.free, ecc_is_on=None if ecc is None else bool(ecc[0]),
        uncorrected_errors=asked("nvmlDeviceGetTotalEccErrors", nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                                 nvml.NVML_VOLATILE_ECC),
        rows_to_remap=None if rows is None else bool(rows[2] or rows[3]),
        slow_downs=tuple(name for bit, name in _SLOW_DOWN.items() if reasons & bit),
        is_power_capped=bool(reasons & _POWER_CAP),
        temperature_celsius=asked("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
        other_processes=tuple(each.pid for each in processes if each.pid != os.getpid()),
        compute_mode=asked("nvmlDeviceGetComputeMode"), has_mig=bool(mig and mig[0]),
        pcie_width=asked("nvmlDeviceGetCurrPcieLinkWidth"), pcie_widest=asked("nvmlDeviceGetMaxPcieLinkWidth"),
        pcie_generation=asked("nvmlDeviceGetMaxPcieLinkGeneration"), nvlinks=len(links),
        nvlink_version=asked("nvmlDeviceGetNvLinkVersion", links[0]) if links else None)


def _without_peer_access(nvml: Any, handles: list[Any]) -> tuple[tuple[int, int], ...]:
    """Pairs of GPUs that the driver says cannot read each other's memory; a pair of which it says nothing is left out.
    """
    found = []
    for first in range(len(handles)):
        for second in range(first + 1, len(handles)):
            status = _asked(partial(nvml.nvmlDeviceGetP2PStatus, handles[first], handles[second],
                                    nvml.NVML_P2P_CAPS_INDEX_READ))
            if status not in (None, nvml.NVML_P2P_STATUS_OK):
                found.append((first, second))
    return tuple(found)


def _asked(question: Callable[[], Any]) -> Any:
    """The answer; None where this GPU or this driver has none."""
    with contextlib.suppress(Exception):
        return question()
    return None


def _in_slots() -> int:
    """NVIDIA's display controllers on the PCI bus; a container sees them also where it may not use them."""
    count = 0
    for device in _PCI.glob("*") if _PCI.is_dir() else ():
        with contextlib.suppress(OSError):
            count += ((device / "vendor").read_text().strip() == _NVIDIA
                      and (device / "class").read_text().startswith(_DISPLAY))
    return count
