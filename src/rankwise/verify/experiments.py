"""Causes by experiment: the reference and a layout once more, with one suspect changed in both."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One change, and whether the difference vanished with it."""

    change: str
    layout: str
    vanished: bool
