"""Places in code, as a person names them: `train.py:12 in train`, of the user's files alone."""

from __future__ import annotations

import functools
import importlib.util
import inspect
from collections.abc import Iterable
from pathlib import Path
from types import FrameType

_OURS = str(Path(__file__).parent)
_RECIPES = str(Path(__file__).parent / "recipes")
_PYTHON = str(Path(inspect.__file__).parent)


def of_user(frames: Iterable[tuple[FrameType, int]]) -> tuple[str, ...]:
    """Those of some frames, each with its line, that are of the user's code."""
    found = []
    for frame, line in frames:
        file = user_file(frame.f_code.co_filename)
        if file:
            found.append(f"{file}:{line} in {frame.f_code.co_name}")
    return tuple(found)


@functools.cache
def user_file(path: str) -> str:
    """A file as a person names it; nothing for torch's, Python's own and ours, but for the recipes."""
    if path.startswith(_packages()) and not path.startswith(_RECIPES):
        return ""
    if path.startswith(_PYTHON) and "site-packages" not in path:
        return ""
    try:
        return str(Path(path).resolve().relative_to(Path.cwd()))
    except ValueError:
        return "/".join(Path(path).parts[-2:])   # machines may keep it in other folders


@functools.cache
def _packages() -> tuple[str, ...]:
    """Where files begin that are not the user's. Torch is found without loading it."""
    torch = importlib.util.find_spec("torch")
    torch_folder = str(Path(torch.origin).parent) if torch is not None and torch.origin else _OURS
    return _OURS, torch_folder, "<frozen", "<string>"
