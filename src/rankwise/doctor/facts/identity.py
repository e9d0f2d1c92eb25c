"""Words by which this machine and its user could be told: what a bug report leaves out."""

from __future__ import annotations

import contextlib
import getpass
import socket
from pathlib import Path

import psutil


def own_words() -> tuple[str, ...]:
    """The names of this machine and of its user, the user's home, and every address of a network interface."""
    name = socket.gethostname()
    words = [name, name.partition(".")[0]]
    with contextlib.suppress(Exception):   # a user without a name, as in a container
        words.append(getpass.getuser())
    with contextlib.suppress(RuntimeError):
        words.append(str(Path.home()))
    with contextlib.suppress(OSError):
        for addresses in psutil.net_if_addrs().values():
            words += [each.address.partition("%")[0] for each in addresses]
    return tuple(dict.fromkeys(words))
