"""Quantities as people read them."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise import quantities


@pytest.mark.parametrize(("value", "text"), [
    (0, "0 us"), (3.4e-4, "340 us"), (0.0123, "12.3 ms"), (0.99996, "1.00 s"), (59.99, "60.0 s"), (119.4, "119 s"),
    (125, "2:05 min"), (3723, "1:02:03 h"), (None, "-"), (math.nan, "-"), (math.inf, "-")])
def test_seconds(value: float | None, text: str) -> None:
    assert quantities.seconds(value) == text


@pytest.mark.parametrize(("value", "text"), [(0, "0 B"), (3, "3 B"), (999.4, "999 B"), (999.9, "1.00 kB"),
                                             (1_500_000, "1.50 MB"), (2.34e9, "2.34 GB"), (None, "-")])
def test_bytes(value: float | None, text: str) -> None:
    assert quantities.byte_count(value) == text


def test_rates_and_shares() -> None:
    assert quantities.rate(12_345.6, "samples") == "12,346 samples/s"
    assert quantities.rate(3.14159, "steps") == "3.14 steps/s"
    assert quantities.rate(1.2e6, "samples") == "1.20 Msamples/s"
    assert quantities.percent(0.1234) == "12 %"
    assert quantities.percent(0.0314) == "3.1 %"
    assert quantities.percent(0) == "0 %"
    assert quantities.ratio(1.934) == "1.93 x"
    assert quantities.rate(None, "samples") == quantities.percent(None) == quantities.ratio(None) == "-"


@given(st.floats(1e-6, 119))
def test_seconds_are_read_back(value: float) -> None:
    """What is shown is within a digit of three of what was given, in every unit."""
    number, unit = quantities.seconds(value).split()
    shown = float(number) * {"s": 1.0, "ms": 1e-3, "us": 1e-6}[unit]
    assert shown == pytest.approx(value, rel=0.006)
    assert len(re.sub(r"\D", "", number)) <= 4
