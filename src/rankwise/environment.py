"""The process's environment: the one file that reads `os.environ` and the one that writes to it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from rankwise.settings import Settings
from rankwise.world import World

SETTINGS = "RANKWISE_SETTINGS"     # settings of a rank, as JSON, from the launcher
RUN_FOLDER = "RANKWISE_RUN_FOLDER" # the run's folder, chosen by the launcher
DATA = "RANKWISE_DATA"             # folder in which data sets are kept


def world() -> World | None:
    """Where a launcher put this process; None where none did."""
    return World.detect(os.environ)


def settings() -> Settings | None:
    """The settings that a launcher handed to this process."""
    text = os.environ.get(SETTINGS)
    return Settings.from_json(text) if text else None


def run_folder() -> Path | None:
    """The run's folder, where a launcher chose one."""
    text = os.environ.get(RUN_FOLDER)
    return Path(text) if text else None


def data_folder() -> Path:
    """Where downloaded data sets are kept: $RANKWISE_DATA, or the user's cache."""
    text = os.environ.get(DATA)
    if text:
        return Path(text)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rankwise"


def child(changes: Mapping[str, str]) -> dict[str, str]:
    """An environment for a child process: this one with some variables changed."""
    return {**os.environ, **changes}
