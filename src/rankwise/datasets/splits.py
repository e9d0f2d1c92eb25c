"""Images and labels of a data set as they are stored, in two parts, and the check that they belong together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rankwise.errors import DataError

Part = tuple[NDArray[np.uint8], NDArray[np.int64]]


@dataclass(frozen=True)
class Splits:
    """Training and test part: images uint8 [n, c, h, w] and labels int64 [n] of each."""

    train: Part
    test: Part


def part(images: NDArray[np.uint8], labels: NDArray[np.generic], where: Path, classes: int = 10) -> Part:
    """Images with their labels. Raises DataError where the two do not fit together."""
    numbers = labels.astype(np.int64)
    if len(images) != len(numbers) or len(images) == 0:
        raise damaged(where, f"It has {len(images)} images and {len(numbers)} labels.")
    if numbers.min() < 0 or numbers.max() >= classes:
        raise damaged(where, f"Labels go from {numbers.min()} to {numbers.max()}; there are {classes} classes, from 0.")
    return images, numbers


def damaged(where: Path, truth: str) -> DataError:
    """The error for a file that is not what its name says."""
    return DataError(f"{where} is damaged.", truth, "Remove it and fetch it again, or copy it from where it is whole.")
