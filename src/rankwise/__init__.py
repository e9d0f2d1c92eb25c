"""rankwise: the same PyTorch training, on more devices.

Public names are loaded at first use, so that `import rankwise` and `rankwise --help` do not load torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rankwise import datasets as datasets
    from rankwise.data import augment as augment
    from rankwise.launcher import launch as launch
    from rankwise.run import Run as Run

__version__ = "0.1.0"

_PUBLIC = {
    "Run": ("rankwise.run", "Run"),
    "launch": ("rankwise.launcher", "launch"),
    "augment": ("rankwise.data.augment", None),
    "datasets": ("rankwise.datasets", None),
    "errors": ("rankwise.errors", None),
}

__all__ = ["Run", "__version__", "augment", "datasets", "errors", "launch"]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'rankwise' has no attribute {name!r}")
    module, attribute = _PUBLIC[name]
    loaded = importlib.import_module(module)
    value = getattr(loaded, attribute) if attribute else loaded
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
