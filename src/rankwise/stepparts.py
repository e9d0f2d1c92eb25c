"""The parts of a step, by name: they add up to its time, wherever it is measured, logged or shown."""

from __future__ import annotations

PARTS = ("data", "forward", "backward", "communication", "optimizer", "other")
"""`communication` is what is not hidden behind backward."""
