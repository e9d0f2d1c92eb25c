"""What must not leave this machine with a bug report: names, addresses, and where a user's files lie."""

from __future__ import annotations

import re
from collections.abc import Collection

HIDDEN = "(hidden)"
IN_COMMANDS = "HIDDEN"   # what a shell takes for a plain word
_NOT_PRIVATE = {"", "root", "localhost", "127.0.0.1", "127.0.1.1", "::1", "0.0.0.0", "/", "/root", "lo"}  # noqa: S104
_FORMS = (
    re.compile(r"\[?\b\d{1,3}(?:\.\d{1,3}){3}\]?:\d+"),                     # an address with a port
    re.compile(r"\b[0-9a-fA-F]{1,4}(?::[0-9a-fA-F]{0,4}){3,7}(?:%\w+)?"),   # of IPv6, or of a network card
    re.compile(r"\b(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"),
    re.compile(r"(?:/home|/Users)/[^/\s:;,]+"),
)


def scrubbed(text: str, words: Collection[str], hidden: str = HIDDEN) -> str:
    """The text with `hidden` for each of these words, and for all that has the form of an address or of a home.

    A word is hidden where it stands by itself: a machine called `vm` does not hide a part of `nvme`.
    """
    for word in sorted(set(words) - _NOT_PRIVATE, key=len, reverse=True):
        text = re.sub(rf"(?<![\w]){re.escape(word)}(?![\w])", hidden, text)
    for form in _FORMS:
        text = form.sub(lambda found: found[0] if found[0].startswith(("127.", "::1")) else hidden, text)
    return text
