"""The options of `run.prepare` for a module."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, fields
from typing import Any

from rankwise.errors import MisuseError


@dataclass(frozen=True, kw_only=True)
class PrepareOptions:
    """How a module is replicated. A mode that has no use for an option ignores it, so a script runs in every mode."""

    sync_batchnorm: bool = False
    """BatchNorm takes its statistics over the rows of all ranks."""
    find_unused: bool = False
    """Parameters may be without a gradient in some steps (ddp looks for them in each backward)."""
    static_graph: bool = False
    """The graph is the same in every backward: lets ddp work with reentrant checkpointing, and reduce unused parameters
    without looking for them. Gradients are then averaged with every micro-batch."""
    bucket_mb: float | None = None
    """Most gradient bytes that ddp reduces at once, in MiB; None leaves it to torch (25)."""

    @classmethod
    def of(cls, options: dict[str, Any]) -> PrepareOptions:
        """Raises MisuseError for an unknown name or a value that cannot be used."""
        known = [field.name for field in fields(cls)]
        for name in options:
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                raise MisuseError(f"run.prepare was given the option `{name}`.",
                                  f"Options for modules are {', '.join(known)}.",
                                  f"Did you mean `{close[0]}`?" if close else "Leave it out.")
        chosen = cls(**options)
        if chosen.bucket_mb is not None and not chosen.bucket_mb > 0:
            raise MisuseError(f"run.prepare was given bucket_mb={chosen.bucket_mb!r}.", "A bucket has a positive size.",
                              "Give bucket_mb=25, for example.")
        return chosen
