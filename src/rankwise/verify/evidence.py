"""What the witnesses of one layout wrote: records of each rank, and the weights of rank 0."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from rankwise.witness.indices import INDICES
from rankwise.witness.plan import record_file, tensor_file
from rankwise.witness.record import END, ENOUGH

_AVERAGED = 1 / 64


@dataclass(frozen=True, kw_only=True)
class Step:
    """One update on one rank, and what led to it since the one before."""

    gradient_norm: float
    gradients: Mapping[str, Sequence[Any]] = field(default_factory=dict)   # name -> norm, hash of the bits
    losses: Sequence[Sequence[float]] = ()     # of each backward pass: the loss times its seed, and the loss itself
    lr: Sequence[float] = ()
    rows: Mapping[str, Sequence[str]] = field(default_factory=dict)        # module -> a hash a sample
    clips: Sequence[Sequence[float]] = ()      # total norm, bound
    plateaus: Sequence[float] = ()
    settings: Sequence[Mapping[str, Any]] = ()
    optimizer: int = 0

    @property
    def loss(self) -> float:
        parts = [part for part, _ in self.losses]
        return math.fsum(parts) if all(map(math.isfinite, parts)) else math.nan

    @property
    def samples(self) -> Counter[str]:
        """The samples of the first module that was given data."""
        return Counter(next(iter(self.rows.values()), ()))


@dataclass(frozen=True, kw_only=True)
class State:
    """Hashes of what a step left behind."""

    parameters: Mapping[str, str] = field(default_factory=dict)
    buffers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Rank:
    """One rank's record. `states[k]` is what step k left behind, `states[0]` the beginning."""

    steps: Sequence[Step]
    states: Mapping[int, State] = field(default_factory=dict)
    how: str = ENOUGH           # how it ended: enough, returned, failed with ..., stuck, or vanished
    where: str = ""
    error: str = ""
    layers: Mapping[str, int] = field(default_factory=dict)
    noticed: Sequence[str] = ()
    begun: bool = True          # whether the step after the last one was begun
    reads_indices: bool = False # whether the data comes through torch's DataLoader


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """All that is known of one run of a training."""

    layout: str
    ranks: Sequence[Rank]
    initial: Mapping[str, torch.Tensor] = field(default_factory=dict)
    final: Mapping[str, torch.Tensor] = field(default_factory=dict)
    buffer_names: frozenset[str] = frozenset()
    logged: Sequence[float] = ()     # rankwise's own loss of each step
    failure: str = ""                # what the launcher tells of a run that failed
    seconds: float = 0.0
    folder: Path | None = None

    @property
    def steps(self) -> int:
        """Updates that every rank made."""
        return min((len(rank.steps) for rank in self.ranks), default=0)

    @property
    def ended_well(self) -> bool:
        return bool(self.ranks) and all(rank.how in (ENOUGH, "returned") for rank in self.ranks) and not self.failure

    def at(self, step: int) -> list[Step]:
        """Step `step`, counted from 1, of each rank."""
        return [rank.steps[step - 1] for rank in self.ranks]

    def loss(self, step: int) -> float:
        """What the ranks minimise together where they average their gradients: the mean over ranks."""
        return math.fsum(each.loss for each in self.at(step)) / len(self.ranks)

    def gradient_norm(self, step: int) -> float:
        """Before it was clipped, where it was."""
        first = self.at(step)[0]
        return math.hypot(*(total for total, _ in first.clips)) if first.clips else first.gradient_norm

    def samples(self, step: int) -> Counter[str]:
        """The samples of the global batch."""
        return sum((each.samples for each in self.at(step)), Counter())

    @property
    def epsilon(self) -> float:
        """The rounding of the coarsest dtype among the parameters; in mixed precision, what is left of that dtype's
        where many roundings are averaged."""
        kinds = {tensor.dtype for tensor in self.initial.values() if tensor.is_floating_point()}
        known = max((torch.finfo(kind).eps for kind in kinds), default=2.0 ** -23)
        low = [torch.finfo(kind).eps * _AVERAGED for kind in (torch.bfloat16, torch.float16)
               if any(str(kind).removeprefix("torch.") in rank.noticed for rank in self.ranks)]
        return max([known, *low])


def read(folder: Path, layout: str, world_size: int, *, failure: str = "", run_folder: Path | None = None,
         seconds: float = 0.0) -> Evidence:
    """The evidence in a folder that a layout's witnesses wrote to."""
    records = [_entries(record_file(folder, rank)) for rank in range(world_size)]
    ends = [entry for record in records for entry in record if entry["kind"] == END]
    return Evidence(layout=layout, ranks=[_rank(record) for record in records], initial=_tensors(folder, "initial"),
                    final=_tensors(folder, "final"), failure=failure, seconds=seconds, folder=folder,
                    buffer_names=frozenset(name for end in ends for name in end.get("buffers", ())),
                    logged=_logged(run_folder) if run_folder is not None else ())


def steps_made(folder: Path) -> int:
    """How many updates rank 0 has made so far."""
    try:
        return record_file(folder, 0).read_bytes().count(b'{"kind": "step"')
    except OSError:
        return 0


def _entries(file: Path) -> list[dict[str, Any]]:
    if not file.exists():
        return []
    lines = file.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1]]   # what follows the last line's end was cut off


def _rank(record: list[dict[str, Any]]) -> Rank:
    steps: list[Step] = []
    states: dict[int, State] = {}
    settings: dict[int, Any] = {}
    layers: dict[str, int] = {}
    end: dict[str, Any] = {"how": "vanished"}
    reads_indices = any(entry["kind"] == INDICES for entry in record)
    for entry in record:
        kind = entry.pop("kind")
        if kind == "step":
            settings[entry["optimizer"]] = entry.pop("settings") or settings[entry["optimizer"]]
            entry.pop("step")
            steps.append(Step(**entry, settings=settings[entry["optimizer"]]))
        elif kind == "state":
            states[entry["step"]] = State(parameters=entry["parameters"], buffers=entry["buffers"])
        elif kind == "model":
            layers = entry["layers"]
        elif kind == END:
            end = entry
    return Rank(steps=steps, states=states, layers=layers, how=end["how"], where=end.get("where", ""),
                error=end.get("error", ""), noticed=end.get("noticed", ()), begun=end.get("begun", True),
                reads_indices=reads_indices)


def _tensors(folder: Path, moment: str) -> dict[str, torch.Tensor]:
    file = tensor_file(folder, moment)
    found: dict[str, torch.Tensor] = load_file(file) if file.exists() else {}
    return found


def _logged(run_folder: Path) -> list[float]:
    file = run_folder / "metrics.jsonl"
    if not file.exists():
        return []
    entries = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [entry["loss"] for entry in entries if "loss" in entry]
