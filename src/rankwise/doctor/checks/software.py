"""Python and the build of torch: whether the installation is whole."""

from __future__ import annotations

from rankwise import releases
from rankwise.doctor.facts import Facts
from rankwise.doctor.finding import Seen, fault, not_applicable, ok, warning

_OLDEST_PYTHON = (3, 10)
_OLDEST_TORCH = (2, 7, 1)   # both as pyproject.toml has them


def python(facts: Facts) -> Seen:
    """A Python that rankwise and this torch run on."""
    software = facts.software
    said = f"Python {software.python}, {software.system} on {software.machine}"
    if not software.is_64_bit:
        return fault(f"{said}, a 32-bit build, for which there is no torch.", "Install a 64-bit Python.")
    if releases.numbers(software.python)[:2] < _OLDEST_PYTHON:
        return fault(f"{said}; rankwise needs 3.10 or newer.", "python3.12 -m venv .venv")
    if software.system != "Linux":
        return warning(f"{said}; rankwise is tested on Linux.")
    return ok(f"{said}.")


def torch(facts: Facts) -> Seen:
    """A torch that can be imported, is new enough, and is the one that the environment lists."""
    software = facts.software
    if software.torch is None:
        return fault(f"torch cannot be imported: {software.torch_problem}",
                     "python -m pip install --force-reinstall torch")
    numbers = releases.numbers(software.torch)
    if numbers < _OLDEST_TORCH:
        return fault(f"torch {software.torch}; rankwise needs 2.7.1 or newer.",
                     "python -m pip install --upgrade torch")
    if software.torch_metadata is not None and releases.numbers(software.torch_metadata) != numbers:
        return fault(f"torch {software.torch} is imported, and the environment lists {software.torch_metadata}: files "
                     "of two installations lie on top of each other.",
                     "python -m pip uninstall --yes torch && python -m pip install torch")
    if releases.release_of(software.torch) is None:
        return warning(f"torch {software.torch} is not among the releases that rankwise knows "
                       f"({releases.releases()[0].version} to {releases.releases()[-1].version}).",
                       "Nothing, if it works; or: python -m pip install --upgrade rankwise")
    return ok(f"torch {software.torch}.")


def backends(facts: Facts) -> Seen:
    """The transports between ranks that this build has."""
    software = facts.software
    there = [name for name, has in (("gloo", software.has_gloo), ("nccl", software.has_nccl)) if has]
    if software.torch is None:
        return not_applicable("torch cannot be imported.")
    if software.cuda_is_available and not software.has_nccl:
        return fault(f"torch sees GPUs and has no NCCL, only: {', '.join(there) or 'nothing'}.",
                     "Install torch's own build for Linux: python -m pip install --force-reinstall torch")
    if not there:
        return fault("This torch has no backend for several processes.",
                     "python -m pip install --force-reinstall torch")
    return ok(f"backends of torch.distributed: {', '.join(there)}.")


def numpy(facts: Facts) -> Seen:
    """numpy and torch exchange arrays; a torch that was built for another numpy cannot."""
    if facts.software.torch is None:
        return not_applicable("torch cannot be imported.")
    if facts.software.numpy_problem:
        return fault(f"torch and numpy do not work together: {facts.software.numpy_problem}",
                     "python -m pip install --upgrade numpy torch")
    return ok("torch and numpy exchange arrays.")


def pins(facts: Facts) -> Seen:
    """The packages that torch, torchvision and torchaudio ask for in one exact version."""
    pins = facts.software.pins
    wrong = [pin for pin in pins if pin.found is None
             or releases.numbers(pin.found) != releases.numbers(pin.wanted)]
    if wrong:
        said = "; ".join(f"{pin.by} asks for {pin.package} {pin.wanted}, installed: {pin.found or 'none'}"
                         for pin in wrong)
        names = " ".join(sorted({f"'{pin.package}=={pin.wanted}'" for pin in wrong if pin.package != "torch"}
                                | {pin.by for pin in wrong if pin.package == "torch"}))
        return fault(f"{said}.", f"python -m pip install {names}")
    if not pins:
        return not_applicable("no installed package asks for one exact version of another one.")
    return ok(f"{len(pins)} packages that torch, torchvision or torchaudio need in one exact version are installed "
              "so.")


def compiler(facts: Facts) -> Seen:
    """torch.compile writes C++ and compiles it while a training runs."""
    if facts.software.compiler is None:
        return warning("no C compiler: torch.compile fails, everything else works.",
                       "sudo apt-get install -y gcc libc6-dev")
    return ok(f"C compiler: {facts.software.compiler}.")
