"""A link between two devices, as an all-reduce sees it: what a message costs, and what a byte costs."""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from rankwise.errors import UsageError

_FILE = Path(__file__).with_name("links.json")
_BYTES_PER_SECOND = {"mbit": 1e6 / 8, "gbit": 1e9 / 8, "MB/s": 1e6, "GB/s": 1e9}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_STATED_SPREAD = 0.1   # a rate that the user states is taken for what arrives


@dataclass(frozen=True, kw_only=True)
class Link:
    """A link by Hockney's model: a message of n bytes takes `latency_seconds` + n / `bytes_per_second`.

    `bytes_per_second` is what arrives in one direction. `spread` is the share by which both may be off, either way.
    """

    name: str
    latency_seconds: float
    bytes_per_second: float
    spread: float
    source: str
    is_latency_stated: bool = False

    def seconds(self, message_bytes: float) -> float:
        """Seconds that one message takes."""
        return self.latency_seconds + message_bytes / self.bytes_per_second

    def over(self, backend: str) -> Link:
        """The link by name as a backend uses it: gloo takes its own time for a message, unless the user states one."""
        if self.is_latency_stated:
            return self
        known = _known()
        latency = known["gloo_latency_seconds"] if backend == "gloo" else self.latency_seconds
        return replace(self, latency_seconds=latency, source=f"{self.source} {known['sources'][backend]}")

    def slower_by(self, share: float) -> Link:
        """The same link where all takes (1 + `share`) times as long; a negative share makes it faster."""
        return replace(self, latency_seconds=self.latency_seconds * (1 + share),
                       bytes_per_second=self.bytes_per_second / (1 + share))


def link(option: str, text: str) -> Link:
    """The link that `text` names: 100gbit, nvlink, 40gbit, 12.5GB/s, or with a latency of its own 40gbit:20us.

    Raises UsageError, in the name of `option`, for what is neither a name nor a rate.
    """
    rate, _, latency = text.partition(":")
    found = _named(rate) or _stated(rate)
    if found is None:
        close = difflib.get_close_matches(rate, names(), n=1)
        raise UsageError(f"{option} is {text}.", f"Links by name are {', '.join(names())}; a rate is written 40gbit, "
                         "250mbit or 12.5GB/s, and may have a latency behind it: 40gbit:20us.",
                         f"Did you mean {option} {close[0]}?" if close else f"Give {option} 100gbit, for example.")
    if not latency:
        return found
    return replace(found, name=text, latency_seconds=_latency(option, text, latency), is_latency_stated=True)


def names() -> list[str]:
    """The links that can be named."""
    return [*_known()["links"], *_known()["aliases"]]


@lru_cache(maxsize=1)
def _known() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))
    return found


def _named(name: str) -> Link | None:
    known = _known()
    found = known["links"].get(known["aliases"].get(name, name))
    if found is None:
        return None
    return Link(name=name, latency_seconds=found["latency_seconds"],
                bytes_per_second=found["bytes_per_second"] * found["achieved"], spread=found["spread"],
                source=known["sources"][found["source"]])


def _stated(rate: str) -> Link | None:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(mbit|gbit|MB/s|GB/s)", rate)
    if found is None or float(found[1]) == 0:
        return None
    likely = float(_known()["links"]["100gbit"]["latency_seconds"])
    return Link(name=rate, latency_seconds=likely, spread=_STATED_SPREAD,
                bytes_per_second=float(found[1]) * _BYTES_PER_SECOND[found[2]],
                source="The rate is as stated, with 10 % either way.")


def _latency(option: str, text: str, latency: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(us|ms|s)", latency)
    if found is None:
        raise UsageError(f"{option} is {text}.", f"Behind the colon is a latency, and {latency} is none.",
                         f"Give {option} {text.partition(':')[0]}:20us, for example.")
    return float(found[1]) * _SECONDS[found[2]]
