"""The folder that a command writes its results to."""

from __future__ import annotations

import tempfile
from pathlib import Path

from rankwise.errors import UsageError


def writable(folder: Path) -> Path:
    """Make the folder, before anything is measured; raises UsageError where nothing can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise UsageError(f"--output is {folder}.", f"It cannot be written to: {error.strerror}.",
                         "Give --output a folder that can be written to.") from None
