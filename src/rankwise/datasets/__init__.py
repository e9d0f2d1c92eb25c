"""Image data sets in memory: two that come with the package, two that are downloaded, and folders of their formats."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rankwise import environment
from rankwise.data.arrays import Arrays
from rankwise.datasets import cifar, embedded, idx
from rankwise.datasets.download import Source, fetch, locked, sources
from rankwise.datasets.splits import Splits
from rankwise.errors import DataError

__all__ = ["load", "names"]


@dataclass(frozen=True)
class _Format:
    """A layout of files on disk: how to find it in a folder, how to read it, how its pixels are spread."""

    find: Callable[[Path], Path | None]
    read: Callable[[Path], Splits]
    unpack: Callable[[Path, Path], None]   # an archive, and the folder to write to
    mean: tuple[float, ...]
    std: tuple[float, ...]


_FORMATS = {
    "cifar10": _Format(cifar.find, cifar.read, cifar.unpack, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "fashion-mnist": _Format(idx.find, idx.read, lambda archive, folder: None, (0.2860,), (0.3530,)),
}


def names() -> list[str]:
    """The data sets that `load` knows by name; the first ones come with the package."""
    return [*embedded.STATISTICS, *_FORMATS]


def load(name_or_folder: str | Path) -> tuple[Arrays, Arrays]:
    """Training and test images, in memory, as data sets for `run.loader`.

    A name is one of `names()`: `fashion-mini` (5,000 + 1,000 of 1x14x14) and `digits` (1,437 + 360 of 1x8x8) come with
    the package; `cifar10` (50,000 + 10,000 of 3x32x32) and `fashion-mnist` (60,000 + 10,000 of 1x28x28) are looked for
    in $RANKWISE_DATA (else the user's cache) and downloaded there once a node. A folder holds CIFAR-10's python or
    binary files, CIFAR-10's archive, or four idx files of images and labels. Images are uint8 [n, c, h, w] and labels
    int64 [n]; a sample is a float32 image, normalised over each channel, and its label.

    Raises DataError where the data set is unknown, missing, damaged or cannot be downloaded.
    """
    name = str(name_or_folder)
    if name in embedded.STATISTICS:
        return _arrays(embedded.read(name), *embedded.STATISTICS[name])
    if name in _FORMATS:
        layout = _FORMATS[name]
        return _arrays(layout.read(_provide(name, layout)), layout.mean, layout.std)
    folder = Path(name_or_folder).expanduser()
    if not folder.is_dir():
        close = difflib.get_close_matches(name, names(), n=1)
        raise DataError(f"There is no data set and no folder `{name}`.", f"Data sets are {', '.join(names())}.",
                        f"Did you mean {close[0]}?" if close else "Give one of these names, or a folder.")
    for known, layout in _FORMATS.items():
        place = layout.find(folder) or _from_archive(known, layout, folder)
        if place is not None:
            return _arrays(layout.read(place), layout.mean, layout.std)
    raise DataError(f"The folder {folder} holds no data set that rankwise reads.",
                    "It reads CIFAR-10 (cifar-10-batches-py, cifar-10-batches-bin or cifar-10-python.tar.gz) and "
                    "idx files (train-images-idx3-ubyte and the three beside it, .gz or not).",
                    "Give the folder that holds these, or load the data yourself: run.loader takes any Dataset.")


def _arrays(splits: Splits, mean: tuple[float, ...], std: tuple[float, ...]) -> tuple[Arrays, Arrays]:
    return (Arrays(*splits.train, mean=mean, std=std), Arrays(*splits.test, mean=mean, std=std))


def _provide(name: str, layout: _Format) -> Path:
    """Where the files of a named data set are, after a download where there were none."""
    own, files = environment.data_folder() / name, sources(name)
    for place in (own, own.parent, *files.places):
        found = layout.find(place)
        if found is not None:
            return found
    with locked(own, files):
        found = layout.find(own)
        if found is None:
            for source in files.files:
                layout.unpack(fetch(source, own, name), own)
            found = layout.find(own)
    assert found is not None
    return found


def _from_archive(name: str, layout: _Format, folder: Path) -> Path | None:
    """The files out of an archive that the user put into the folder."""
    files = sources(name)
    present: list[Source] = [source for source in files.files if (folder / source.name).is_file()]
    if len(present) < len(files.files):
        return None
    with locked(folder, files):
        if layout.find(folder) is None:
            for source in present:
                layout.unpack(fetch(source, folder, name), folder)
    return layout.find(folder)
