"""What each torch release was built for: its CUDA builds, their cuDNN and NCCL, and the driver that a CUDA needs.

The table is `releases.json`, with its sources. A release that is younger than the table is not in it.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from importlib.resources import files
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Release:
    """One release of torch: the CUDA of its default wheel with what that brings, and the CUDA of its other wheels."""

    version: str
    python: str   # the least
    cuda: str
    cudnn: str
    nccl: str
    others: tuple[str, ...]

    @property
    def builds(self) -> tuple[str, ...]:
        """Every CUDA there is a wheel for, oldest first."""
        return tuple(sorted((self.cuda, *self.others), key=numbers))


def releases() -> tuple[Release, ...]:
    """The releases of the table, oldest first."""
    return tuple(Release(**{**each, "others": tuple(each["others"])}) for each in _table()["torch"])


def release_of(torch_version: str) -> Release | None:
    """The release of this minor series, whatever its build is called: 2.13.0+cpu is of 2.13. None if not recorded."""
    series = numbers(torch_version)[:2]
    return next((each for each in releases() if numbers(each.version)[:2] == series), None)


def least_driver(cuda: str) -> str | None:
    """The oldest Linux driver on which a program that was built with this CUDA runs; None if not recorded.

    Within a major CUDA a newer minor one runs on an older driver: NVIDIA's minor version compatibility. So a wheel for
    12.6 runs on the driver of CUDA 12.1.
    """
    driver: str | None = _table()["least_driver"].get(cuda.split(".")[0])
    return driver


def full_driver(cuda: str) -> str | None:
    """The driver that came with this CUDA, which knows everything of it; None if not recorded."""
    driver: str | None = _table()["full_driver"].get(".".join(cuda.split(".")[:2]))
    return driver


def sources() -> dict[str, str]:
    """Where each part of the table was read."""
    read_from: dict[str, str] = _table()["read_from"]
    return read_from


def numbers(version: str) -> tuple[int, ...]:
    """The numbers of a version, to compare it by: 2.13.0+cpu is (2, 13, 0). What is no number ends it."""
    found: list[int] = []
    for part in version.split("+")[0].split("."):
        digits = "".join(character for character in part if character.isdigit())
        if not digits:
            break
        found.append(int(digits))
        if digits != part:
            break
    return tuple(found)


@functools.cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads((files("rankwise") / "releases.json").read_text(encoding="utf-8"))
    return table
