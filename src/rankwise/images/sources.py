"""Where the parts of an image come from: its base, and the places of packages. The addresses are in `sources.json`."""

from __future__ import annotations

import functools
import json
import urllib.parse
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from rankwise.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Base:
    """The image that ours begin from: pinned by digest, with the Python that it brings."""

    image: str
    name: str
    python: str
    read_from: str

    @property
    def python_series(self) -> str:
        """The first two numbers of its Python, as in the names of folders."""
        return ".".join(self.python.split(".")[:2])


@dataclass(frozen=True, kw_only=True)
class Mirror:
    """The places of one mirror; `{build}` in those of torch is cpu, cu126 and so on. None: the usual place."""

    packages: str | None = None
    torch_index: str | None = None   # pages by package, as pip's --extra-index-url
    torch_links: str | None = None   # one page of files, as pip's --find-links
    debian: str | None = None
    debian_security: str | None = None


def base() -> Base:
    """The base that is taken unless another one is given."""
    return Base(**_sources()["base"])


def platform() -> str:
    """What the recorded locks are for."""
    return str(_sources()["platform"])


def mirror(word: str) -> Mirror:
    """What --mirror names: none, a mirror that is known, or the address of one with /pypi/simple and /debian below it.

    Raises UsageError for any other word.
    """
    known: dict[str, dict[str, str]] = _sources()["mirrors"]
    usual = str(_sources()["torch_index"])
    if word == "none":
        return Mirror(torch_index=usual)
    if word in known:
        return Mirror(**known[word])
    if not word.startswith(("http://", "https://")) or any(letter.isspace() for letter in word):
        raise UsageError(f"--mirror is {word!r}.", f"It can be none, {', '.join(known)}, or an address.",
                         "Give --mirror none, or --mirror https://HOST with /pypi/simple and /debian below it.")
    parts = urllib.parse.urlsplit(word)
    if parts.username or parts.password or "@" in parts.netloc:
        raise UsageError("--mirror has a name or a password in it.", "It stays in the image, for all to read.",
                         "Give settings that are for the build alone with --pip-conf FILE.")
    if not parts.hostname or parts.query or parts.fragment:
        raise UsageError(f"--mirror is {word!r}.", "It has no host, or something behind its path.",
                         "Give --mirror https://HOST, or https://HOST/PATH.")
    root = word.rstrip("/")
    return Mirror(packages=f"{root}/pypi/simple", torch_index=usual,
                  debian=f"{root}/debian", debian_security=f"{root}/debian-security")


@functools.cache
def _sources() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((files("rankwise.images") / "sources.json").read_text(encoding="utf-8"))
    return found
