"""A module that keeps its identity and gets a method of ours: its class is swapped for a subclass.

Names of parameters, attributes, methods and `isinstance` stay as they are, and a copy or a pickle of the module is of
the class that it had before.
"""

from __future__ import annotations

import copyreg
from typing import Any

from torch import nn


class InPlace(nn.Module):
    """What is put in front of a module's class; subclasses override what they change."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A copy is a plain module: it goes where this process's group and threads do not."""
        swapped: Any = type(self)
        plain = swapped
        while issubclass(plain, InPlace):
            plain = plain.__bases__[1]
        recipe: Any = super().__reduce_ex__(protocol)
        build, arguments, *rest = (plain if part is swapped else part for part in recipe)
        if build is copyreg.__newobj__:  # type: ignore[attr-defined]  # pickle insists on the object's own class there
            build = object.__new__
        return (build, tuple(plain if part is swapped else part for part in arguments), *rest)


def put_in_front(front: type[InPlace], module: nn.Module, **attributes: Any) -> None:
    """Make `module` an instance of (front, its class); `attributes` are the new class's, so no copy carries them."""
    plain = type(module)
    swapped = type(plain.__name__, (front, plain), {"__module__": plain.__module__, "__qualname__": plain.__qualname__,
                                                    "__doc__": plain.__doc__, **attributes})
    object.__setattr__(module, "__class__", swapped)
