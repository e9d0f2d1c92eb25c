"""CIFAR-10's two official layouts: pickles that Python 2 wrote, and rows of bytes.

Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009. The pickles are read by an unpickler that
builds arrays of bytes and nothing else, so that a file from elsewhere cannot run code.
"""

from __future__ import annotations

import pickle
import shutil
import tarfile
import tempfile
import zlib
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankwise.datasets.splits import Part, Splits, damaged, part
from rankwise.errors import DataError

_PYTHON, _BINARY = "cifar-10-batches-py", "cifar-10-batches-bin"
_TRAIN = [f"data_batch_{number}" for number in range(1, 6)]
_TEST = "test_batch"
_ROW_BYTES = 3072   # 32 x 32 pixels of red, then of green, then of blue


def find(folder: Path) -> Path | None:
    """The folder in which the batches are: this one, or one of the official names in it."""
    for place in (folder, folder / _PYTHON, folder / _BINARY):
        if any((place / f"{name}{ending}").is_file() for name in (*_TRAIN, _TEST) for ending in ("", ".bin")):
            return place
    return None


def read(place: Path) -> Splits:
    """Images uint8 [n, 3, 32, 32] and labels int64 [n]. Raises DataError where a file is missing or damaged."""
    ending = ".bin" if any(place.glob("*_batch*.bin")) else ""
    missing = [f"{name}{ending}" for name in (*_TRAIN, _TEST) if not (place / f"{name}{ending}").is_file()]
    if missing:
        raise DataError(f"The folder {place} lacks {', '.join(missing)}.",
                        "CIFAR-10 has five batches for training and one for tests.",
                        "Remove the folder and unpack the archive again.")
    read_batch = _binary_batch if ending else _python_batch
    batches = [read_batch(place / f"{name}{ending}") for name in _TRAIN]
    images, labels = (np.concatenate(each) for each in zip(*batches, strict=True))
    return Splits(train=(images, labels), test=read_batch(place / f"{_TEST}{ending}"))


def unpack(archive: Path, folder: Path) -> None:
    """Write the official archive's batches to `folder`, all or none. Nothing else in the archive is touched."""
    wanted = {*_TRAIN, _TEST, "batches.meta"}
    fresh = Path(tempfile.mkdtemp(prefix=".unpacking-", dir=folder))
    try:
        with tarfile.open(archive) as members:
            for member in members:
                content = members.extractfile(member) if PurePosixPath(member.name).name in wanted else None
                if content is not None:
                    with (fresh / PurePosixPath(member.name).name).open("wb") as file:
                        shutil.copyfileobj(content, file)
        fresh.chmod(0o755)
        fresh.rename(folder / _PYTHON)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise damaged(archive, f"It cannot be unpacked: {error}.") from None
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _binary_batch(file: Path) -> Part:
    content = np.fromfile(file, np.uint8)
    if len(content) == 0 or len(content) % (1 + _ROW_BYTES):
        raise damaged(file, f"It has {len(content):,} bytes; a row is one label and {_ROW_BYTES:,} bytes of pixels.")
    rows = content.reshape(-1, 1 + _ROW_BYTES)
    return part(_images(rows[:, 1:]), rows[:, 0], file)


def _python_batch(file: Path) -> Part:
    try:
        with file.open("rb") as stream:
            content = _ArraysOnly(stream, encoding="bytes").load()
        batch = {key.decode() if isinstance(key, bytes) else key: value for key, value in content.items()}
        rows, labels = batch["data"], np.asarray(batch["labels"])
    except (pickle.UnpicklingError, EOFError, KeyError, AttributeError, ValueError, TypeError, IndexError,
            ImportError, MemoryError) as error:
        raise damaged(file, f"It is not a batch of CIFAR-10: {error or type(error).__name__}.") from None
    shape, kind = getattr(rows, "shape", None), getattr(rows, "dtype", None)
    if kind != np.uint8 or shape is None or shape[1:] != (_ROW_BYTES,) or labels.dtype.kind != "i":
        raise damaged(file, f"Its pixels are {kind} {shape}; a batch has uint8 [n, {_ROW_BYTES}].")
    return part(_images(rows), labels, file)


def _images(rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(rows).reshape(-1, 3, 32, 32)


class _ArraysOnly(pickle.Unpickler):
    """An unpickler that knows numpy's arrays and no other name."""

    def find_class(self, module: str, name: str) -> Any:
        rebuild = np.ndarray(0).__reduce__()[0]   # numpy's own function, which has moved between modules
        known = {("numpy.core.multiarray", "_reconstruct"): rebuild,
                 ("numpy._core.multiarray", "_reconstruct"): rebuild,
                 ("numpy", "ndarray"): np.ndarray, ("numpy", "dtype"): np.dtype}
        if (module, name) not in known:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no batch needs")
        return known[module, name]
