"""Environment variables that change what a training does without a word: what each of those that are set does."""

from __future__ import annotations

import functools
import json
from importlib.resources import files
from typing import Any

from rankwise.doctor.finding import Seen, fault, ok, warning
from rankwise.doctor.privacy import HIDDEN

_PLAIN = 20   # a value that is longer is private


def seen_of(name: str, value: str) -> Seen:
    """What this variable changes, with this value."""
    known = _known().get(name)
    if known is None:
        shown = value if value.isdecimal() and len(value) <= _PLAIN else HIDDEN   # it may be a secret
        return ok(f"{name}={shown}: rankwise does not know what it does.")
    private = (value,) if known.get("private") or len(value) > _PLAIN else ()
    problem = _problem(known.get("kind", ""), value)
    if problem:
        return fault(f"{name}={value}: {problem}", f"unset {name}", private=private)
    said = f"{name}={value}: {known['effect']}"
    if known.get("is_harmful") and value.lower() not in known.get("harmless", ()):
        return warning(said, f"unset {name}, unless this machine needs it", private=private)
    return ok(said, private=private)


def _problem(kind: str, value: str) -> str:
    """Why this value cannot be one of its kind."""
    if kind == "port" and not (value.isdecimal() and 0 <= int(value) < 65536):
        return "it is no port, which is a number below 65536."
    if kind == "count" and not (value.split(",")[0].isdecimal() and int(value.split(",")[0]) > 0):
        return "it is no number of threads; each library takes another number instead."
    return ""


@functools.cache
def _known() -> dict[str, dict[str, Any]]:
    table: dict[str, dict[str, Any]] = json.loads(
        (files("rankwise.doctor") / "variables.json").read_text(encoding="utf-8"))["variables"]
    return table
