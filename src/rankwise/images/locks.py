"""Locks: each package of an image with its version and the hash of its wheel, as pip's --require-hashes reads them."""

from __future__ import annotations

import re
from importlib.resources import files

from rankwise.errors import UsageError

_PINNED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([^\s;\\]+)")
_HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}\b")


def recorded(build: str, torch: str) -> str | None:
    """The lock of this build (cpu, cu126) of this torch; None where it was not resolved."""
    file = files("rankwise.images") / "locks" / f"{build}-torch{torch}.txt"
    return file.read_text(encoding="utf-8") if file.is_file() else None


def of_dev() -> str:
    """The lock of what the dev image has beyond the train image, with any torch."""
    return (files("rankwise.images") / "locks" / "dev.txt").read_text(encoding="utf-8")


def read(text: str) -> dict[str, str]:
    """The version of each package, by its normal name. Raises UsageError for a line that is not pinned with a hash."""
    versions = {}
    for line in text.replace("\\\n", " ").splitlines():
        requirement = line.split("#")[0].strip()
        if not requirement:
            continue
        found = _PINNED.match(requirement)
        if found is None or not _HASH.search(requirement):
            raise UsageError(f"The lock has the line `{requirement[:80]}`.",
                             "Each package stands in it as NAME==VERSION, with --hash=sha256:... of its wheel.",
                             "Make it with `uv pip compile --generate-hashes`, for example.")
        versions[normal(found[1])] = found[2]
    return versions


def check_torch(versions: dict[str, str], requirement: str) -> None:
    """Raises UsageError where a lock has another torch than the image, which is `requirement` (torch==2.13.0+cpu)."""
    found = versions.get("torch")
    if f"torch=={found}" != requirement:
        raise UsageError(f"--lock has {f'torch=={found}' if found else 'no torch'}.",
                         f"The image that is asked for has {requirement}.",
                         "Give the lock of this image, or the --cuda and --torch that the lock is for.")


def differences(lock: dict[str, str], installed: dict[str, str]) -> list[str]:
    """What is installed otherwise than locked, a sentence each; what is installed besides is not told."""
    return [f"{name} is {installed[name]}, the lock has {version}" if name in installed
            else f"{name} {version} of the lock is not installed"
            for name, version in sorted(lock.items()) if installed.get(name) != version]


def normal(name: str) -> str:
    """The name of a package as indices compare it: Jinja2 and jinja2, a_b and a-b are the same."""
    return re.sub(r"[-_.]+", "-", name).lower()
