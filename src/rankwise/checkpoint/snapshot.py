"""The state of a training at one moment: tensors copied into memory that is kept from one checkpoint to the next."""

from __future__ import annotations

import copy
import io
from collections import OrderedDict, defaultdict
from typing import Any

import torch

from rankwise.errors import CheckpointError

_Kind = tuple[torch.dtype, torch.Size]
_PLAIN = (type(None), bool, int, float, complex, str, bytes)


class Staging:
    """Memory on the CPU for one snapshot at a time.

    It is used again: a copy into memory that the process has not touched yet takes two to three times as long, for the
    system has to clear each page of it first.
    """

    def __init__(self) -> None:
        self._buffers: dict[_Kind, list[torch.Tensor]] = {}

    def take(self, state: Any) -> Any:
        """A copy of `state`, on the CPU, that shares nothing with it. It is good until the next call.

        Names of one tensor share one copy. Raises CheckpointError for a value that only unsafe unpickling could read,
        and where there is no memory for the copy.
        """
        copying = _Copying(self._buffers)
        taken = copying.copy_of(state)
        copying.fill()
        self._buffers = copying.used
        return taken


class _Copying:
    """One snapshot: first every tensor gets its place, then all of them are copied at once."""

    def __init__(self, spare: dict[_Kind, list[torch.Tensor]]) -> None:
        self.used: dict[_Kind, list[torch.Tensor]] = defaultdict(list)
        self._spare = spare
        self._sources: list[torch.Tensor] = []
        self._copies: list[torch.Tensor] = []
        self._known: dict[Any, torch.Tensor] = {}

    def copy_of(self, value: Any) -> Any:
        """A copy of dicts, lists and tuples to any depth; its tensors are empty until `fill`."""
        if isinstance(value, torch.Tensor):
            return self._place(value)
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind in (dict, OrderedDict):
            copied = copy.copy(value)   # with the versions that torch keeps beside the state of a module
            copied.update({key: self.copy_of(each) for key, each in value.items()})
            return copied
        if kind in (list, tuple):
            return kind(self.copy_of(each) for each in value)
        _require_safe(value)
        return copy.deepcopy(value)

    def _place(self, tensor: torch.Tensor) -> torch.Tensor:
        source = tensor.detach()
        if type(source) is not torch.Tensor or source.layout != torch.strided or source.is_quantized:
            _require_safe(source)
            return source.clone().cpu()
        identity = (source.device, source.data_ptr(), source.dtype, source.shape, source.stride())
        if identity not in self._known:
            self._known[identity] = self._buffer_for(source)
            self._sources.append(source)
            self._copies.append(self._known[identity])
        return self._known[identity]

    def _buffer_for(self, source: torch.Tensor) -> torch.Tensor:
        kind = (source.dtype, source.shape)
        spare = self._spare.get(kind)
        buffer = spare.pop() if spare else _fresh(source)
        self.used[kind].append(buffer)
        return buffer

    def fill(self) -> None:
        if not self._sources:
            return
        on_cuda = {source.device for source in self._sources if source.is_cuda}
        with torch.no_grad():
            torch._foreach_copy_(self._copies, self._sources, non_blocking=bool(on_cuda))
        for device in on_cuda:
            torch.cuda.current_stream(device).synchronize()


def _fresh(source: torch.Tensor) -> torch.Tensor:
    try:
        return torch.empty_like(source, device="cpu", pin_memory=source.is_cuda)
    except RuntimeError as error:   # how torch says that there is no memory
        raise CheckpointError("A checkpoint was to be made.",
                              f"The copy of the state finds no memory: {str(error).splitlines()[0]}.",
                              "Rank 0's machine needs room for the state once more.") from error


def _require_safe(value: Any) -> None:
    """A value that only unsafe unpickling could read is refused now, rather than when it is needed."""
    file = io.BytesIO()
    try:
        torch.save(value, file)
        file.seek(0)
        kinds = torch.serialization.get_unsafe_globals_in_checkpoint(file)
    except Exception as error:   # pickle raises what it likes
        raise _unsafe(type(value).__qualname__) from error
    if kinds:
        raise _unsafe(", ".join(sorted(kinds)))


def _unsafe(kinds: str) -> CheckpointError:
    return CheckpointError(f"The checkpoint would hold values of the kind {kinds}.",
                           "It holds tensors and plain Python values, which can be read without risk.",
                           "Convert them in the state_dict of what was prepared: a NumPy number with float(), "
                           "an array with torch.from_numpy.")
