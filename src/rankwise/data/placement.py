"""Batches on their device: tensors wherever they sit in a batch, moved without waiting for the device."""

from __future__ import annotations

from typing import Any

import torch

from rankwise.structure import is_container, rebuilt


def to_device(batch: Any, device: torch.device) -> Any:
    """The batch with its tensors on `device`: in tuples, lists, mappings, dataclasses, and objects with `.to`."""
    if isinstance(batch, torch.Tensor):
        if batch.device == device:
            return batch
        # From pageable memory a copy to an accelerator would wait for the work that is queued there.
        if device.type == "cuda" and batch.device.type == "cpu" and not batch.is_pinned():
            batch = batch.pin_memory()
        return batch.to(device, non_blocking=True)
    if hasattr(batch, "to"):
        return batch.to(device)
    if is_container(batch):
        return rebuilt(lambda member: to_device(member, device), batch)
    return batch
