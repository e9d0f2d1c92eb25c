"""The two questions that every tutorial begins with: is the driver there, and does torch see CUDA?"""

from __future__ import annotations

from rankwise import releases
from rankwise.doctor.facts import Facts
from rankwise.doctor.finding import Seen, fault, not_applicable, ok, warning


def driver_seen(facts: Facts) -> Seen:
    """What nvidia-smi would say first."""
    gpus = facts.gpus
    if gpus.driver is not None:
        names = sorted({gpu.name for gpu in gpus.found})
        seen = f"driver {gpus.driver}, which knows CUDA up to {gpus.driver_cuda}"
        if not gpus.found:
            return fault(f"{seen}; it shows no GPU.",
                         "In a container: start it with all GPUs (docker run --gpus all).")
        return ok(f"{seen}; {len(gpus.found)} GPU{'s' * (len(gpus.found) > 1)}: {', '.join(names)}.")
    if gpus.has_kernel_module:
        return fault(f"The driver is in the kernel, and its library does not answer: {gpus.problem}.",
                     "In a container: docker run --gpus all. On the machine itself, after an update of the driver: "
                     "sudo reboot")
    if gpus.in_slots:
        return fault(f"{gpus.in_slots} NVIDIA device{'s' * (gpus.in_slots > 1)} on the PCI bus, and no driver: "
                     f"{gpus.problem}.",
                     "Install NVIDIA's driver; on Ubuntu: sudo ubuntu-drivers install. In a container: "
                     "docker run --gpus all")
    return not_applicable("no NVIDIA GPU and no driver on this machine.")


def torch_sees_cuda(facts: Facts) -> Seen:
    """`torch.cuda.is_available()`, and which CUDA it was built with."""
    software = facts.software
    if software.torch is None:
        return fault(f"torch cannot be imported: {software.torch_problem}",
                     "python -m pip install --force-reinstall torch")
    if software.cuda_is_available:
        count = len(software.devices)
        return ok(f"torch {software.torch} sees CUDA {software.cuda} and {count} GPU{'s' * (count != 1)}.")
    driver = None if facts.unread() and facts.gpus_or_not in facts.unread() else facts.gpus.driver
    if software.cuda is None:
        said = f"torch {software.torch} is a build without CUDA"
        if driver is None:
            return not_applicable(f"{said}, and there is no GPU: trainings run on the CPU.")
        return fault(f"{said}, and driver {driver} is here.", _install(facts))
    if driver is None:
        return not_applicable(f"torch {software.torch} is built with CUDA {software.cuda}; no GPU is here.")
    if facts.variables.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return warning(f"torch {software.torch} is built with CUDA {software.cuda}; CUDA_VISIBLE_DEVICES hides every "
                       "GPU.", "unset CUDA_VISIBLE_DEVICES")
    return fault(f"torch {software.torch} is built with CUDA {software.cuda}, driver {driver} is here, and torch sees "
                 "no GPU.", "See the findings on versions below; then: python -c 'import torch; torch.cuda.init()'")


def _install(facts: Facts) -> str:
    """The newest release whose wheel on the package index runs on this driver."""
    driver = facts.gpus.driver
    assert driver is not None
    python = releases.numbers(facts.software.python)
    fitting = [release for release in releases.releases() if runs_on(release.cuda, driver)
               and python >= releases.numbers(release.python)]
    if not fitting:
        return f"Update the driver: {driver} is too old for every torch that rankwise runs on."
    return f"python -m pip install --force-reinstall torch=={fitting[-1].version}"


def runs_on(cuda: str, driver: str) -> bool:
    """Whether a program that was built with this CUDA runs on this driver, as far as the table knows."""
    least = releases.least_driver(cuda)
    return least is not None and releases.numbers(driver) >= releases.numbers(least)
