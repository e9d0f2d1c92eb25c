"""torch's flight recorder: which collectives this process called, from where, and which of them is not through.

torch keeps the latest 2,000 unless TORCH_FR_BUFFER_SIZE says otherwise, in newer releases those of gloo too. Where
there is no record, `read` answers with an empty one.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rankwise import places
from rankwise.watchdog.loading import is_loaded
from rankwise.watchdog.state import Call

_DUMPS = ("_dump_fr_trace", "_dump_nccl_trace")   # of all transports, and NCCL's alone
_OVER_ALL_RANKS = "default_pg"
_KEPT_CALLS = 64


@dataclass(frozen=True)
class Record:
    """`calls` are the latest over all ranks, in order, and `pending` is the first of any group that is not through."""

    calls: tuple[Call, ...] = ()
    pending: Call | None = None


def read() -> Record:
    """What torch has recorded in this process."""
    entries = [entry for entry in _entries() if not entry.get("is_p2p")]
    waiting = next((entry for entry in entries if not entry.get("retired", True)), None)
    over_all = [entry for entry in entries if _OVER_ALL_RANKS in entry.get("process_group", ())]
    return Record(tuple(map(_call, over_all[-_KEPT_CALLS:])), None if waiting is None else _call(waiting))


def _entries() -> list[dict[str, Any]]:
    bindings = sys.modules.get("torch._C._distributed_c10d")
    # DistributedDataParallel loads it. To do so here would take seconds, and would break the loading that is under way.
    with_places = is_loaded("torch._dynamo")
    for dump in filter(None, (getattr(bindings, name, None) for name in _DUMPS)):
        try:
            entries = _Plain(io.BytesIO(dump(includeStackTraces=with_places))).load().get("entries")
        except (pickle.UnpicklingError, RuntimeError, AttributeError):
            continue
        if entries:
            return list(entries)
    return []


class _Plain(pickle.Unpickler):
    """Reads lists, mappings, texts and numbers, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} has no place in a record")


def _call(entry: dict[str, Any]) -> Call:
    name = str(entry.get("profiling_name", "")).rpartition(":")[2] or "a collective"
    tensors = [f"{str(kind).lower()} {size}"
               for kind, size in zip(entry.get("input_dtypes") or (), entry.get("input_sizes") or (), strict=False)]
    return Call(what=f"{name} ({', '.join(tensors[:2])})" if tensors else name,
                place=next(_places(entry.get("frames") or ()), ""), number=entry.get("collective_seq_id"))


def _places(frames: Any) -> Iterator[str]:
    for frame in frames:
        file = places.user_file(frame["filename"])
        if file:
            yield f"{file}:{frame['line']} in {frame['name']}"
