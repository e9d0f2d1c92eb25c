"""The idx files of MNIST and its kin (Fashion-MNIST: Xiao, Rasul, Vollgraf 2017): two of images, two of labels."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rankwise.datasets.splits import Part, Splits, damaged, part
from rankwise.errors import DataError

_FILES = {"train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
          "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")}
_UINT8 = 0x08   # the third byte of an idx file: the type of its entries; the fourth is the number of dimensions


def find(folder: Path) -> Path | None:
    """The folder, where it holds the four files."""
    return folder if all(_file(folder, name) for names in _FILES.values() for name in names) else None


def read(place: Path) -> Splits:
    """Images uint8 [n, 1, h, w] and labels int64 [n]. Raises DataError where a file is missing or damaged."""
    return Splits(train=_part(place, *_FILES["train"]), test=_part(place, *_FILES["test"]))


def _part(place: Path, images_name: str, labels_name: str) -> Part:
    images, labels = _required(place, images_name), _required(place, labels_name)
    return part(_array(images, 3)[:, None], _array(labels, 1), labels)


def _file(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def _required(folder: Path, name: str) -> Path:
    found = _file(folder, name)
    if found is None:
        raise DataError(f"The folder {folder} lacks {name}.", "A data set of this kind has four idx files.",
                        "Put the file there, .gz or not, or give the folder that has it.")
    return found


def _array(file: Path, dimensions: int) -> NDArray[np.uint8]:
    try:
        content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise damaged(file, f"It cannot be read: {error}.") from None
    header = 4 + 4 * dimensions
    if len(content) < header or content[:4] != bytes([0, 0, _UINT8, dimensions]):
        raise damaged(file, f"It begins with {content[:4].hex(' ')}; an idx file of bytes in {dimensions} dimensions "
                            f"begins with 00 00 08 0{dimensions}.")
    shape = np.frombuffer(content[4:header], ">u4").astype(int)
    if len(content) - header != int(shape.prod()):
        raise damaged(file, f"It has {len(content) - header:,} bytes of entries; its header says {shape.prod():,}.")
    entries: NDArray[np.uint8] = np.frombuffer(content, np.uint8, offset=header).reshape(shape)
    return np.array(entries)   # writable, as torch wants it
