"""How the facts of a machine with GPUs are read: from an NVML and a torch that are made up, for there are none here."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from doctorfacts import facts
from rankwise.doctor import checks
from rankwise.doctor.facts import gpus, software
from rankwise.doctor.finding import FAULT

GB = 10 ** 9


class FakeNvml(ModuleType):
    """An NVML with two GPUs, of which the second is in trouble; what it does not know it raises, as the real one."""

    NVML_NVLINK_MAX_LINKS, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC = 4, 1, 0
    NVML_TEMPERATURE_GPU, NVML_P2P_CAPS_INDEX_READ, NVML_P2P_STATUS_OK = 0, 0, 0

    def __init__(self) -> None:
        super().__init__("pynvml")
        answers: dict[str, Any] = {
            "nvmlDeviceGetMemoryInfo": lambda gpu: SimpleNamespace(total=80 * GB, free=(70 + 9 * (gpu == 0)) * GB),
            "nvmlDeviceGetEccMode": lambda gpu: (1, 1),
            "nvmlDeviceGetTotalEccErrors": lambda gpu, kind, counter: 7 * gpu,
            "nvmlDeviceGetCurrentClocksThrottleReasons": lambda gpu: 0x44 if gpu else 0x1,
            "nvmlDeviceGetComputeRunningProcesses": lambda gpu: [SimpleNamespace(pid=4711)] * gpu,
            "nvmlDeviceGetRemappedRows": lambda gpu: (0, 0, 0, 0), "nvmlDeviceGetName": lambda gpu: "NVIDIA H100",
            "nvmlDeviceGetNvLinkState": lambda gpu, link: int(link < 3),
            "nvmlDeviceGetNvLinkVersion": lambda gpu, link: 4,
            "nvmlDeviceGetTemperature": lambda gpu, sensor: 40 + 50 * gpu,
            "nvmlDeviceGetComputeMode": lambda gpu: 3 * gpu,
            "nvmlDeviceGetCurrPcieLinkWidth": lambda gpu: 16 - 8 * gpu, "nvmlDeviceGetMaxPcieLinkWidth": lambda gpu: 16,
            "nvmlDeviceGetMaxPcieLinkGeneration": lambda gpu: 5, "nvmlDeviceGetP2PStatus": lambda one, other, kind: 1,
            "nvmlInit": lambda: None, "nvmlShutdown": lambda: None, "nvmlSystemGetDriverVersion": lambda: "580.65.06",
            "nvmlSystemGetCudaDriverVersion_v2": lambda: 13000, "nvmlDeviceGetCount": lambda: 2,
            "nvmlDeviceGetHandleByIndex": lambda index: index}
        self.__dict__.update(answers)


def test_what_nvml_says_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it, with None for what a GPU does not tell; and the checks see the trouble of the second one."""
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    found = gpus.read()
    assert (found.driver, found.driver_cuda, found.problem) == ("580.65.06", "13.0", "")
    assert found.without_peer_access == ((0, 1),)
    first, second = found.found
    assert (first.nvlinks, first.nvlink_version, first.free_bytes, first.has_mig) == (3, 4, 79 * GB, False)
    assert (second.uncorrected_errors, second.other_processes, second.temperature_celsius) == (7, (4711,), 90)
    assert (second.slow_downs, second.is_power_capped) == (("too hot (hardware)",), True)
    seen = {each.check: each for each in checks.examine(facts(gpus=vars(found))) if each.group == checks.GPUS}
    assert seen["memory errors"].verdict == seen["other processes"].verdict == FAULT
    assert "GPU 1: 7" in seen["memory errors"].evidence
    assert "GPU 1: 8 of 16 lanes" in seen["links"].evidence


def test_an_nvml_that_does_not_fit_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an update of the driver, before the machine was started again."""
    broken = FakeNvml()

    def init() -> None:
        raise RuntimeError("Driver/library version mismatch")

    broken.nvmlInit = init   # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pynvml", broken)
    assert gpus.read().problem == "Driver/library version mismatch"


def test_nvidia_devices_are_counted_on_the_bus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Display controllers of NVIDIA, and neither its sound devices nor other makers' controllers."""
    for name, vendor, kind in (("a", "0x10de", "0x030200"), ("b", "0x10de", "0x040300"), ("c", "0x1002", "0x030000")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vendor").write_text(f"{vendor}\n")
        (tmp_path / name / "class").write_text(f"{kind}\n")
    monkeypatch.setattr(gpus, "_PCI", tmp_path)
    assert gpus._in_slots() == 1


@pytest.mark.parametrize(("number", "version"), [(90501, "9.5.1"), (91002, "9.10.2"), (8907, "8.9.7"), (None, None)])
def test_the_version_of_cudnn(number: int | None, version: str | None) -> None:
    """torch gives it as one number, which has another form since version 9."""
    torch = SimpleNamespace(backends=SimpleNamespace(cudnn=SimpleNamespace(version=lambda: number)))
    assert software._cudnn(torch) == version


def test_facts_need_no_torch() -> None:
    """Who receives them does not import it, slow or broken as it may be: they are plain values."""
    assert b"torch_version" not in pickle.dumps(software.read())


def test_an_nccl_that_is_broken_is_a_finding() -> None:
    """The loaded library says another version than torch was built with, or cannot be asked."""
    def of(nccl: Any) -> str | None:
        return software._nccl(SimpleNamespace(cuda=SimpleNamespace(nccl=nccl)))

    older = of(SimpleNamespace(version=lambda: (2, 18, 3)))
    assert older == "2.18.3"
    for said in (older, of(SimpleNamespace())):
        seen = {each.check: each for each in checks.examine(facts(software={"nccl": said}))}
        assert seen["NCCL"].verdict == FAULT, said


def test_libraries_are_found_where_they_are_mapped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By the file that this process has mapped, whatever put it there."""
    maps = tmp_path / "maps"
    maps.write_text("7f0-7f1 r-xp 0 08:01 12  /opt/nccl/lib/libnccl.so.2.18.3\n7f1-7f2 rw-p 0 00:00 0\n"
                    "7f2-7f3 r--p 0 08:01 13  /env/site-packages/nvidia/cudnn/lib/libcudnn.so.9\n")
    monkeypatch.setattr(software, "_MAPPED", maps)
    assert software._loaded() == {"libnccl": "/opt/nccl/lib/libnccl.so.2.18.3",
                                  "libcudnn": "/env/site-packages/nvidia/cudnn/lib/libcudnn.so.9"}


@pytest.mark.parametrize(("line", "applies"), [
    ('nvidia-nccl-cu12==2.26.2; platform_system == "Linux" and platform_machine == "x86_64"', True),
    ('nvidia-nccl-cu12==2.26.2; platform_system == "Windows"', False),
    ('nvidia-nccl-cu12==2.26.2; platform_system == "Linux" and platform_machine == "aarch64"', False)])
def test_requirements_of_other_platforms_do_not_count(line: str, applies: bool,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    """By the conditions that torch's requirements have."""
    monkeypatch.setattr(software.platform, "system", lambda: "Linux")
    monkeypatch.setattr(software.platform, "machine", lambda: "x86_64")
    assert software._applies(line) is applies
