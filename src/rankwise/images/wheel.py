"""A wheel of the rankwise that runs here, made of its own files: a checkout and an installation give the same one."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from importlib.resources import files
from pathlib import Path

from rankwise.errors import UsageError

_MOMENT = (1980, 1, 1, 0, 0, 0)   # a zip file has no earlier one; the same files give the same bytes
_FILE_MODE = 0o100644
_DESCRIPTION = "Wheel-Version: 1.0\nGenerator: rankwise\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def version() -> str:
    """The version of the rankwise that runs here."""
    return _installed().version


def name_of_wheel() -> str:
    """Its file name, which pip reads the version from."""
    return f"rankwise-{version()}-py3-none-any.whl"


def requirements() -> list[str]:
    """What rankwise needs beside torch, as requirements of pip."""
    return [each for each in _installed().requires or () if "extra ==" not in each and not each.startswith("torch>")]


def write(folder: Path) -> Path:
    """Write the wheel; returns its file. Raises UsageError where rankwise has no metadata to put in."""
    target = folder / name_of_wheel()
    record = ""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content in sorted(_contents()):
            _add(wheel, name, content)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            record += f"{name},sha256={digest},{len(content)}\n"
        record_name = f"{_information()}/RECORD"
        _add(wheel, record_name, f"{record}{record_name},,\n".encode())
    return target


def _add(wheel: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name, _MOMENT)
    entry.external_attr = _FILE_MODE << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    wheel.writestr(entry, content)


def _contents() -> Iterator[tuple[str, bytes]]:
    package = Path(str(files("rankwise")))
    for path in package.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            yield f"rankwise/{path.relative_to(package).as_posix()}", path.read_bytes()
    here, information = _installed(), _information()
    yield f"{information}/METADATA", (here.read_text("METADATA") or here.read_text("PKG-INFO") or "").encode()
    yield f"{information}/entry_points.txt", (here.read_text("entry_points.txt") or "").encode()
    yield f"{information}/WHEEL", _DESCRIPTION.encode()
    for file in here.files or ():
        if ".dist-info/licenses/" in file.as_posix():
            yield f"{information}/licenses/{file.name}", file.read_binary()


def _information() -> str:
    return f"rankwise-{version()}.dist-info"


def _installed() -> Distribution:
    found = distribution("rankwise")
    if not (found.read_text("METADATA") or found.read_text("PKG-INFO")) or not found.read_text("entry_points.txt"):
        raise UsageError("The rankwise that runs here cannot be put into an image.",
                         "It has no metadata, so it is no installation that pip made.",
                         "Install it: pip install rankwise, or pip install -e . in its folder.")
    return found
