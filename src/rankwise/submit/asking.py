"""Questions to a cluster's own commands, each with a time limit."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence


def asked(command: Sequence[str], *, limit_seconds: float, given: str = "") -> subprocess.CompletedProcess[str]:
    """What the command answered, with `given` as its input; one that does not end in time has failed, and says so."""
    try:
        return subprocess.run(command, input=given, capture_output=True, text=True, timeout=limit_seconds, check=False)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"no answer within {limit_seconds:.0f} s")
