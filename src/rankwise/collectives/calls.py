"""A call of a collective, as ranks compare it: what is called, and from where in the user's code."""

from __future__ import annotations

import functools
import inspect
import json
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist

from rankwise import places

# The arguments that must agree over the ranks, by torch's own names for them. Those of the two all_to_all may differ.
COMPARED: dict[str, tuple[str, ...]] = {
    "all_reduce": ("op", "tensor"), "all_reduce_coalesced": ("op", "tensors"), "reduce": ("op", "tensor"),
    "broadcast": ("tensor",), "scatter": ("tensor",), "gather": ("tensor",),
    "all_gather": ("tensor_list",), "all_gather_coalesced": ("input_tensor_list",),
    "all_gather_into_tensor": ("input_tensor",), "all_gather_single": ("input_tensor",),
    "reduce_scatter": ("op", "input_list"), "reduce_scatter_tensor": ("op", "input"),
    "reduce_scatter_single": ("op", "input"), "all_to_all": (), "all_to_all_single": (),
    "broadcast_object_list": (), "scatter_object_list": (), "gather_object": (), "all_gather_object": (),
    "barrier": (), "monitored_barrier": (), "new_group": ("ranks",),
}
_ROOTS = ("src", "dst", "group_src", "group_dst")


@dataclass(frozen=True)
class Call:
    """One rank's call. `place` are the frames of the user's code, innermost first; `root` is a rank of the world."""

    what: str
    place: tuple[str, ...] = ()
    root: int | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Call:
        found = json.loads(text)
        return cls(what=found["what"], place=tuple(found["place"]), root=found["root"])

    def told(self, than: Sequence[Call] = ()) -> str:
        """What and where, with as many of the calling frames as it takes to tell this call from others."""
        frames = 1
        while frames < len(self.place) and any(
                other.place != self.place and other.place[:frames] == self.place[:frames] for other in than):
            frames += 1
        where = ", called from ".join(self.place[:frames])
        return f"{self.what} at {where}" if where else self.what


def call_of(name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any],
            group: dist.ProcessGroup) -> Call:
    """The call `function(*args, **kwargs)` of torch's collective `name`. Raises TypeError as the call itself would."""
    bound = signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    given = bound.arguments
    root = next((given[each] if each in ("src", "dst") else dist.get_global_rank(group, given[each])
                 for each in _ROOTS if given.get(each) is not None), None)
    parts = [name, *(_told(given[each]) for each in COMPARED[name] if each in given)]
    if root is not None:
        parts.append(f"{'from' if 'src' in given else 'to'} rank {root}")
    return Call(" ".join(parts), place(), root)


@functools.cache
def signature(function: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(function)


def place() -> tuple[str, ...]:
    """The frames of the user's code that this is called from, innermost first: `train.py:12 in step`."""
    return places.of_user(traceback.walk_stack(sys._getframe(1)))


def _told(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], torch.Tensor):
        each = [_told(tensor) for tensor in value]
        return f"{len(each)} x {each[0]}" if len(set(each)) == 1 else ", ".join(each)
    return str(getattr(value, "op", value)).rpartition(".")[2]   # of a reduction its name, of ranks the list
