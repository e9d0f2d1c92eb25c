"""Files from the network: once a node, taken up where an interrupted download ended, and checked."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from rankwise.errors import DataError

_CHUNK_BYTES = 1 << 18
_ANSWER_SECONDS = 30.0   # a server that says nothing for so long is given up
_STILL_SECONDS = 120.0   # another process that holds the lock and writes nothing for so long is given up
_SOURCES = Path(__file__).with_name("sources.json")


@dataclass(frozen=True, kw_only=True)
class Source:
    """One file: where it is, how large it is, and the checksum that its publisher's users know."""

    name: str
    address: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Sources:
    """The files of a data set, and folders in which a system package may have put them."""

    files: tuple[Source, ...]
    places: tuple[Path, ...] = ()


def sources(name: str) -> Sources:
    """What sources.json says of a data set."""
    entry = json.loads(_SOURCES.read_text(encoding="utf-8"))[name]
    return Sources(files=tuple(Source(**file) for file in entry["files"]),
                   places=tuple(Path(place) for place in entry["places"]))


@contextlib.contextmanager
def locked(folder: Path, files: Sources) -> Iterator[None]:
    """The folder for this process alone; one that waits shows how far the other has come.

    Raises DataError where the folder cannot be written, and where the other process stands still.
    """
    lock = FileLock(folder / ".lock")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not _acquired(lock):
            _wait(lock, folder, files)
    except OSError as error:
        raise DataError(f"The data folder {folder} cannot be written.", f"The system says: {error.strerror or error}.",
                        "Set RANKWISE_DATA to a folder that can, or copy the data to one.") from None
    try:
        yield
    finally:
        lock.release()


def fetch(source: Source, folder: Path, data_set: str) -> Path:
    """The whole, checked file in `folder`; call it under the folder's lock.

    Raises DataError where it cannot be fetched, and where it is not the file that its checksum says.
    """
    target = folder / source.name
    if target.is_file():
        _check(target, source)
        return target
    fresh = folder / f"{source.name}.part"
    with _progress(source.name, source.size_bytes, f"Downloading {source.address} to {folder}") as show:
        while _size(fresh) < source.size_bytes:
            before, problem = _size(fresh), _continue(source, fresh, show)
            if problem and _size(fresh) <= before:
                raise _unreachable(source, folder, data_set, problem)
    _check(fresh, source)
    fresh.replace(target)
    return target


def _continue(source: Source, fresh: Path, show: Progress) -> str:
    """Add to the file what one connection brings; returns why the connection ended early, or nothing."""
    start = _size(fresh)
    request = urllib.request.Request(source.address, headers={"User-Agent": "rankwise"})   # noqa: S310 (our own list)
    if start:
        request.add_header("Range", f"bytes={start}-")
    try:
        with urllib.request.urlopen(request, timeout=_ANSWER_SECONDS) as answer:   # noqa: S310 (as above)
            start = start if answer.status == http.client.PARTIAL_CONTENT else 0
            with fresh.open("r+b" if start else "wb") as file:
                file.seek(start)
                while file.tell() <= source.size_bytes and (chunk := answer.read(_CHUNK_BYTES)):
                    file.write(chunk)
                    show.update(show.task_ids[0], completed=file.tell())
                file.truncate()
    except urllib.error.HTTPError as error:
        return f"the server answered {error.code} {error.reason}"
    except (OSError, http.client.HTTPException) as error:
        return str(getattr(error, "reason", None) or error) or type(error).__name__
    return "" if _size(fresh) >= source.size_bytes else "the connection ended early"


def _check(file: Path, source: Source) -> None:
    """Remove a file of ours that is not what it should be; leave one that the user put there."""
    found = hashlib.sha256()
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            found.update(chunk)
    if found.hexdigest() == source.sha256:
        return
    size = _size(file)
    if file.suffix == ".part":
        file.unlink()
        raise DataError(f"The download from {source.address} is not the file that it should be.",
                        f"Its {size:,} bytes have the sha256 {found.hexdigest()}, not {source.sha256}.",
                        "It was removed: run again. If this comes again, something on the way changes the file.")
    raise DataError(f"{file} is not the file that it should be.",
                    f"Its {size:,} bytes have the sha256 {found.hexdigest()}; the official {source.size_bytes:,} bytes "
                    f"have {source.sha256}.", "Remove it, so that it is downloaded again.")


def _unreachable(source: Source, folder: Path, data_set: str, problem: str) -> DataError:
    arrived = _size(folder / f"{source.name}.part")
    kept = f" {arrived:,} of {source.size_bytes:,} bytes are here; the next try goes on from there." if arrived else ""
    return DataError(f"The data set {data_set} is not on this machine, and downloading it failed.",
                     f"{source.address}: {problem}.{kept}",
                     f"Connect this machine and run again; or fetch that address elsewhere and put {source.name} into "
                     f"{folder}; or give a folder that has the data, as in --data FOLDER; or train on fashion-mini, "
                     "which comes with rankwise.")


def _acquired(lock: FileLock, seconds: float = 0.0) -> bool:
    try:
        lock.acquire(timeout=seconds)
    except Timeout:
        return False
    return True


def _wait(lock: FileLock, folder: Path, files: Sources) -> None:
    """Until the other process is done, as long as its files grow."""
    total = sum(source.size_bytes for source in files.files)
    grew, last = time.monotonic(), -1
    with _progress("waiting", total, f"Another process is filling {folder}; waiting for it") as show:
        while not _acquired(lock, 0.2):
            size = sum(_size(path) for path in folder.rglob("*"))
            if size != last:
                grew, last = time.monotonic(), size
            elif time.monotonic() - grew > _STILL_SECONDS:
                raise DataError(f"The data folder {folder} is held by another process.",
                                f"For {_STILL_SECONDS:.0f} s that process has written nothing.",
                                "End that process, then run again; what it downloaded is kept.")
            show.update(show.task_ids[0], completed=min(size, total))


@contextlib.contextmanager
def _progress(title: str, total: int, line: str) -> Iterator[Progress]:
    """A progress line on a terminal, else one plain line."""
    console = Console(stderr=True)
    if not console.is_terminal:
        console.print(line, highlight=False, soft_wrap=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(),
               TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as show:
        show.add_task(title, total=total)
        yield show


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
