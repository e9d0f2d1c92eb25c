"""Quantities as people read them: seconds, bytes, rates and shares in a few characters, with their unit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeGuard

UNKNOWN = "-"

_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
_BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_COUNTS = ((1e12, "T"), (1e9, "G"), (1e6, "M"))


def seconds(value: float | None) -> str:
    """`12.3 ms`, `1.20 s`, `340 us`; from two minutes on `2:05 min` and `1:02:03 h`."""
    if not _is_known(value):
        return UNKNOWN
    if abs(value) >= 120:
        minutes, rest = divmod(round(value), 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours}:{minutes:02}:{rest:02} h" if hours else f"{minutes}:{rest:02} min"
    return _scaled(value, _SECONDS)


def byte_count(value: float | None) -> str:
    """`1.23 GB`, `512 B`; units of 1000, as links and disks are sold."""
    if not _is_known(value):
        return UNKNOWN
    return f"{value:.0f} B" if abs(value) < 999.5 else _scaled(value, _BYTES)


def rate(per_second: float | None, what: str) -> str:
    """`12,345 samples/s`, `3.2 steps/s`, and from a million on `1.20 Mparameters/s`."""
    if not _is_known(per_second):
        return UNKNOWN
    if abs(per_second) >= 1e6:
        return f"{_scaled(per_second, _COUNTS)}{what}/s"
    return f"{per_second:,.0f} {what}/s" if abs(per_second) >= 100 else f"{per_second:.3g} {what}/s"


def percent(share: float | None) -> str:
    """`12 %`, `0.4 %`."""
    if not _is_known(share):
        return UNKNOWN
    value = 100 * share
    return f"{value:.1f} %" if 0 < abs(value) < 9.95 else f"{value:.0f} %"


def ratio(value: float | None) -> str:
    """`1.93 x`."""
    return f"{value:.2f} x" if _is_known(value) else UNKNOWN


def _is_known(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)


def _scaled(value: float, units: Sequence[tuple[float, str]]) -> str:
    """Three digits in the unit that fits."""
    size, unit = next(((size, unit) for size, unit in units if abs(value) >= size * 0.9995), units[-1])
    number = value / size
    digits = 0 if abs(number) >= 99.95 or number == 0 else 1 if abs(number) >= 9.995 else 2
    return f"{number:.{digits}f} {unit}"
