"""Follows a run until it is over: looks again and again, and shows what it sees."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console
from rich.live import Live

from rankwise.watch import tables
from rankwise.watch.sight import Sight, look

_LOOK_SECONDS = 0.5
_SAY_SECONDS = 10.0   # without a terminal


def follow(folder: Path, console: Console) -> Sight:
    """Show the run in this folder until it is over; returns what was seen last."""
    sight = _on_terminal(folder, console) if console.is_terminal else _in_lines(folder, console)
    for text in [*tables.remarks(sight), tables.ending(sight)]:
        console.print(text, highlight=False, markup=False, soft_wrap=True)
    return sight


def _on_terminal(folder: Path, console: Console) -> Sight:
    sight = look(folder)
    with Live(tables.screen(sight, console.height), console=console, auto_refresh=False, transient=True) as live:
        while not sight.is_over:
            time.sleep(_LOOK_SECONDS)
            sight = look(folder)
            live.update(tables.screen(sight, console.height), refresh=True)
    return sight


def _in_lines(folder: Path, console: Console) -> Sight:
    sight = look(folder)
    console.print(tables.headline(sight), highlight=False, markup=False, soft_wrap=True)
    said_at = 0.0
    while not sight.is_over:
        if time.monotonic() - said_at >= _SAY_SECONDS:
            console.print(tables.line(sight), highlight=False, markup=False, soft_wrap=True)
            said_at = time.monotonic()
        time.sleep(_LOOK_SECONDS)
        sight = look(folder)
    return sight
