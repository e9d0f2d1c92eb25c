"""The data sets that come with the package: small enough to ship, real enough to learn from.

`fashion-mini` is a part of Fashion-MNIST (Zalando SE, MIT), `digits` is UCI's set of handwritten digits (CC BY 4.0).
The files and their notices are in files/; tools/make_datasets.py made them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rankwise.datasets.splits import Splits

_FILES = Path(__file__).parent / "files"
_LEVELS = {"fashion-mini": 15, "digits": 16}   # the whitest grey level in the file

STATISTICS = {   # mean and standard deviation of the training images, white being 1
    "fashion-mini": ((0.2870,), (0.3322,)),
    "digits": ((0.3054,), (0.3760,)),
}


def read(name: str) -> Splits:
    """Images uint8 [n, 1, h, w] from 0 (black) to 255 (white), and labels int64 [n]."""
    with np.load(_FILES / f"{name}.npz", allow_pickle=False) as file:
        images = {split: _spread(file[f"{split}_images"], _LEVELS[name]) for split in ("train", "test")}
        labels = {split: file[f"{split}_labels"].astype(np.int64) for split in ("train", "test")}
    return Splits(train=(images["train"], labels["train"]), test=(images["test"], labels["test"]))


def _spread(levels: NDArray[np.uint8], whitest: int) -> NDArray[np.uint8]:
    grey: NDArray[np.uint8] = np.round(levels * np.float32(255 / whitest)).astype(np.uint8)
    return grey[:, None]
