"""Whether this process has loaded a module, asked from a thread beside the one that may be about it."""

from __future__ import annotations

import sys


def is_loaded(name: str) -> bool:
    """Whether the script has imported this module, to the end."""
    module = sys.modules.get(name)
    return module is not None and not getattr(module.__spec__, "_initializing", False)
