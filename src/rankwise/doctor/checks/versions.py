"""Whether driver, CUDA, cuDNN and NCCL fit each other, this torch and these GPUs, by the table of releases."""

from __future__ import annotations

import re
from pathlib import Path

from rankwise import releases
from rankwise.doctor.checks.driver import runs_on
from rankwise.doctor.facts import Facts
from rankwise.doctor.finding import Seen, fault, not_applicable, ok, warning

_NO_CUDA = not_applicable("this torch is built without CUDA.")
_REINSTALL = "python -m pip install --force-reinstall torch"


def driver(facts: Facts) -> Seen:
    """The driver must know this CUDA; within a major CUDA a newer minor one runs on an older driver."""
    cuda, here = facts.software.cuda, facts.gpus.driver
    if cuda is None:
        return _NO_CUDA
    if here is None:
        return not_applicable(f"torch is built with CUDA {cuda}, which needs driver "
                              f"{releases.least_driver(cuda) or '(not recorded)'}; none is here.")
    least, full = releases.least_driver(cuda), releases.full_driver(cuda)
    if least is None:
        return warning(f"driver {here}; which one CUDA {cuda} needs is not recorded in this rankwise.",
                       "python -m pip install --upgrade rankwise")
    if not runs_on(cuda, here):
        said = f"CUDA {cuda} needs driver {least} or newer; here is {here}"
        if facts.software.cuda_is_available:
            return warning(f"{said}, and torch sees CUDA all the same, as with NVIDIA's package for forward "
                           "compatibility.", "Keep that package as new as CUDA, or update the driver.")
        return fault(f"{said}.", _other_torch(here))
    if full is not None and releases.numbers(here) < releases.numbers(full):
        return ok(f"driver {here} runs CUDA {cuda} by minor version compatibility (from {least} on); {full} came with "
                  "it.")
    return ok(f"driver {here} is new enough for CUDA {cuda} (needs {least}).")


def _other_torch(driver_here: str) -> str:
    fitting = [release for release in releases.releases() if runs_on(release.cuda, driver_here)]
    instead = f", or take an older torch: python -m pip install torch=={fitting[-1].version}" if fitting else ""
    return f"Update the driver{instead}"


def cudnn(facts: Facts) -> Seen:
    """The cuDNN that is loaded is of the major version that torch was built with, and not older."""
    return _library(facts, "cuDNN", facts.software.cudnn, "cudnn", "libcudnn")


def nccl(facts: Facts) -> Seen:
    """The NCCL that is loaded is the one that torch was built with, or a newer one of the same major version."""
    if facts.software.cuda is not None and not facts.software.has_nccl:
        return not_applicable("this torch is built without NCCL.")
    return _library(facts, "NCCL", facts.software.nccl, "nccl", "libnccl")


def _library(facts: Facts, name: str, loaded: str | None, kind: str, file: str) -> Seen:
    software = facts.software
    if software.cuda is None or software.torch is None:
        return _NO_CUDA
    if loaded is None:
        if not software.cuda_is_available:
            return not_applicable(f"{name} is not loaded where there is no GPU.")
        return fault(f"torch cannot say which {name} it has loaded: it is missing, or does not fit.", _REINSTALL)
    release = releases.release_of(software.torch)
    is_recorded = release is not None and release.cuda == _minor(software.cuda)
    built: str | None = getattr(release, kind) if is_recorded else None
    where = shadow(software.loaded.get(file), software.packages_folder)
    if built is None:
        return ok(f"{name} {loaded} is loaded; which one this build of torch came with is not recorded.")
    have, want = releases.numbers(loaded), releases.numbers(built)
    said = f"{name} {loaded} is loaded{where}; torch {software.torch} was built with {built}"
    if have[0] != want[0] or have < want:
        return fault(f"{said}.", f"unset LD_LIBRARY_PATH LD_PRELOAD; {_REINSTALL}" if where else _REINSTALL)
    if have != want or where:
        return warning(f"{said}.", "unset LD_LIBRARY_PATH LD_PRELOAD, unless you mean to use that one."
                       if where else "Nothing, if it was installed on purpose.")
    return ok(f"{said}.")


def shadow(file: str | None, packages_folder: str) -> str:
    """Where a loaded library comes from, if not from the packages beside torch; empty where all is as installed."""
    if file is None or not packages_folder or Path(file).is_relative_to(packages_folder):
        return ""
    return f" from {Path(file).parent}, not from the packages beside torch"


def architecture(facts: Facts) -> Seen:
    """This build has code for each GPU: for its own architecture, or as PTX that the driver can translate."""
    software = facts.software
    if software.cuda is None:
        return _NO_CUDA
    if not software.devices:
        return not_applicable("torch sees no GPU.")
    without = sorted({f"{device.name} (sm_{device.capability[0]}{device.capability[1]})" for device in software.devices
                      if software.architectures and not has_code_for(device.capability, software.architectures)})
    if without:
        return fault(f"torch {software.torch} has code for {', '.join(software.architectures)}, none of which runs on "
                     f"{', '.join(without)}.",
                     "Older GPUs: torch's builds for CUDA 12.6 keep them longest. Newer ones: "
                     "python -m pip install --upgrade torch")
    broken = [f"GPU {index}: {device.problem}" for index, device in enumerate(software.devices) if device.problem]
    if broken:
        return fault(f"A small computation fails. {'; '.join(broken)}.",
                     "CUDA_LAUNCH_BLOCKING=1 python -c 'import torch; torch.ones(8, 8).cuda().sum().item()'")
    return ok(f"this build has code for {', '.join(sorted({each.name for each in software.devices}))}, and a small "
              "computation on each GPU came out right.")


def has_code_for(capability: tuple[int, int], architectures: tuple[str, ...]) -> bool:
    """Machine code runs on its own major architecture from its minor version on; PTX on every newer one.

    Code that is named with a letter (sm_90a) runs on that one alone (CUDA's guide to binary compatibility).
    """
    for name in architectures:
        found = re.fullmatch(r"(sm|compute)_(\d+)(\d)([a-z]?)", name)
        if found is None:
            continue
        built = (int(found[2]), int(found[3]))
        if found[4]:
            if built == capability:
                return True
        elif (built <= capability) if found[1] == "compute" else (built[0] == capability[0] and built <= capability):
            return True
    return False


def _minor(cuda: str) -> str:
    return ".".join(cuda.split(".")[:2])
