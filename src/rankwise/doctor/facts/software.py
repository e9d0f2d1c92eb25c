"""Python, torch and the libraries that torch brings: what is installed, and what is loaded. Loads torch."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import platform
import re
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_LIBRARIES = ("libnccl", "libcudnn", "libcudart", "libcublas")
_MAPPED = Path("/proc/self/maps")
_PINNED = re.compile(r"^(torch|nvidia-[a-z0-9-]+)\s*\(?==\s*([0-9][0-9.]*)")
_COMPILERS = ("cc", "gcc", "clang")


@dataclass(frozen=True, kw_only=True)
class Pin:
    """One installed package that asks for another one in exactly this version; `found` is what is installed."""

    by: str
    package: str
    wanted: str
    found: str | None


@dataclass(frozen=True, kw_only=True)
class Device:
    """An accelerator as torch sees it, and what a small computation on it raised, if it did."""

    name: str
    capability: tuple[int, int]
    problem: str


@dataclass(frozen=True, kw_only=True)
class Software:
    """Versions as texts, None where there is no such part; `torch_problem` is why torch cannot be imported."""

    python: str
    is_64_bit: bool
    machine: str                        # x86_64, aarch64
    system: str                         # Linux, Darwin, Windows
    compiler: str | None                # name of the C compiler that torch.compile would find
    torch: str | None = None
    torch_problem: str = ""
    torch_metadata: str | None = None   # what the package index of this environment says of torch
    numpy_problem: str = ""
    cuda: str | None = None             # the CUDA that torch was built with
    cudnn: str | None = None            # the one that is loaded
    nccl: str | None = None             # the one that is loaded
    cuda_is_available: bool = False
    mps_is_available: bool = False
    has_gloo: bool = False
    has_nccl: bool = False
    architectures: tuple[str, ...] = ()   # sm_90, compute_90: what the build has code for
    devices: tuple[Device, ...] = ()
    pins: tuple[Pin, ...] = ()
    loaded: dict[str, str] = field(default_factory=dict)   # library -> file that is mapped into the process
    packages_folder: str = ""           # where this environment's packages lie


def read() -> Software:
    """Import torch, and ask it and the installed packages."""
    known: dict[str, Any] = {
        "python": platform.python_version(), "is_64_bit": sys.maxsize > 2 ** 32, "machine": platform.machine(),
        "system": platform.system(), "compiler": next(filter(shutil.which, _COMPILERS), None),
        "torch_metadata": _installed("torch"), "pins": _pins(),
    }
    try:
        torch = importlib.import_module("torch")
    except Exception as error:   # a library that is missing is an OSError, a broken package anything
        return Software(**known, torch_problem=f"{type(error).__name__}: {str(error).strip().splitlines()[0][:300]}"
                        if str(error).strip() else type(error).__name__)
    return Software(**known, **_of_torch(torch))


def _of_torch(torch: Any) -> dict[str, Any]:
    distributed = importlib.import_module("torch.distributed")
    there = distributed.is_available()
    has_nccl = there and distributed.is_nccl_available()
    available = torch.cuda.is_available()
    return {
        "torch": str(torch.__version__), "cuda": torch.version.cuda, "numpy_problem": _numpy_problem(torch),
        "cudnn": _cudnn(torch), "nccl": _nccl(torch) if has_nccl else None,
        "cuda_is_available": available, "mps_is_available": torch.backends.mps.is_available(),
        "has_gloo": there and distributed.is_gloo_available(), "has_nccl": has_nccl,
        "architectures": tuple(torch.cuda.get_arch_list()),
        "devices": tuple(_device(torch, index) for index in range(torch.cuda.device_count() if available else 0)),
        "loaded": _loaded(), "packages_folder": str(Path(torch.__file__).parents[1]),
    }


def _device(torch: Any, index: int) -> Device:
    problem = ""
    try:
        ones = torch.ones(8, 8, device=f"cuda:{index}")
        if (ones @ ones).sum().item() != 8 ** 3:
            problem = "8 x 8 ones times 8 x 8 ones came out wrong"
    except Exception as error:
        problem = str(error).strip().splitlines()[0][:200]
    return Device(name=torch.cuda.get_device_name(index), capability=torch.cuda.get_device_capability(index),
                  problem=problem)


def _cudnn(torch: Any) -> str | None:
    """9.10.2 of 91002; before version 9 there were four digits."""
    with contextlib.suppress(Exception):   # torch itself refuses a library that does not fit
        number = torch.backends.cudnn.version()
        if number:
            thousand = 10_000 if number >= 90_000 else 1000
            return f"{number // thousand}.{number % thousand // 100}.{number % 100}"
    return None


def _nccl(torch: Any) -> str | None:
    """The version that the loaded library says of itself."""
    with contextlib.suppress(Exception):
        return ".".join(str(number) for number in torch.cuda.nccl.version()[:3])
    return None


def _numpy_problem(torch: Any) -> str:
    try:
        import numpy
        torch.from_numpy(numpy.zeros(1)).numpy()
    except Exception as error:
        return str(error).strip().splitlines()[0][:200] or type(error).__name__
    return ""


def _loaded() -> dict[str, str]:
    """Which file each library comes from that this process has mapped."""
    found: dict[str, str] = {}
    if _MAPPED.exists():
        for line in _MAPPED.read_text("utf-8", "replace").splitlines():
            path = line.partition("/")
            name = next((each for each in _LIBRARIES if Path(line).name.startswith(f"{each}.so")), None)
            if name is not None and path[1]:
                found.setdefault(name, f"/{path[2]}")
    return found


def _pins() -> tuple[Pin, ...]:
    """What torch asks of its CUDA libraries, and what torch's sister packages ask of torch."""
    found = []
    for package in ("torch", "torchvision", "torchaudio"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            for line in importlib.metadata.requires(package) or []:
                asked = _PINNED.match(line)
                if asked and "extra ==" not in line and _applies(line):
                    found.append(Pin(by=package, package=asked[1], wanted=asked[2], found=_installed(asked[1])))
    return tuple(found)


def _applies(line: str) -> bool:
    """Whether a requirement is one of this platform, by the two conditions that torch's have."""
    conditions: dict[str, str] = dict(re.findall(r'(platform_system|platform_machine) == "([^"]+)"', line))
    return (conditions.get("platform_system", platform.system()) == platform.system()
            and conditions.get("platform_machine", platform.machine()) == platform.machine())


def _installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
