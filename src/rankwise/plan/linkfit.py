"""A link by what all-reduces of two devices took over it: Hockney's two numbers, and how far they are off."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from rankwise.plan.curves import line_through
from rankwise.plan.links import Link

_SMALL_BYTES = 1 << 12    # up to here an all-reduce is latency
_LARGE_BYTES = 4 << 20    # from here on it is the rate


def fitted(name: str, seconds: Mapping[int, Sequence[float]], source: str) -> Link:
    """The link over which two devices took `seconds` for all-reduces, by their bytes, several times each.

    A ring of two passes half the bytes twice: 2 latencies, and all bytes at the link's rate (`collectives.ring`). Each
    size counts by its median. Those between 4 KiB and 4 MiB are left out: buffers on the way, and links that let a
    burst pass, make them faster than what follows. The spread is how far the others lie from the fit, or the quartiles
    of a size from its median.
    """
    large = min(_LARGE_BYTES, max(seconds))   # over a very slow link nothing larger was timed
    medians = [(float(size), statistics.median(found)) for size, found in seconds.items()
               if size <= _SMALL_BYTES or size >= large]
    line = line_through(medians)
    largest, took = max(medians)
    return Link(name=name, latency_seconds=line.fixed / 2,
                bytes_per_second=1 / line.slope if line.slope > 0 else largest / took,
                spread=min(0.9, max(line.error, _quarters(seconds))), source=source)


def _quarters(seconds: Mapping[int, Sequence[float]]) -> float:
    """Half the distance between the quartiles, as a share of the median: the middle one of the sizes."""
    shares = []
    for found in seconds.values():
        low, middle, high = statistics.quantiles(found, n=4) if len(found) > 1 else [found[0]] * 3
        shares.append((high - low) / 2 / middle)
    return statistics.median(shares)
