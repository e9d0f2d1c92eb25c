"""What a witness sees of tensors: contents as short hashes, rows of a batch, and the places of a script's code."""

from __future__ import annotations

import hashlib
import os
import runpy
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from rankwise.structure import is_container, members

_DIGEST_BYTES = 8
_LIBRARIES = (*(str(folder) + os.sep for folder in (Path(__file__).parents[1], Path(torch.__file__).parent,
                                                    Path(runpy.__file__).parent)), "<frozen")
_RECIPES = str(Path(__file__).parents[1] / "recipes")


def content(tensor: torch.Tensor) -> str:
    """A hash of shape, dtype and bits."""
    digest = hashlib.blake2b(f"{tensor.dtype}{list(tensor.shape)}".encode(), digest_size=_DIGEST_BYTES)
    digest.update(_bytes(_dense(tensor).reshape(1, -1)).tobytes())
    return digest.hexdigest()


def rows(batch: torch.Tensor) -> list[str]:
    """A hash of each row of `batch`, [n, ...]: the same sample has the same hash wherever it lies."""
    if not batch.numel():
        return ["nothing"] * len(batch)
    return [hashlib.blake2b(row.tobytes(), digest_size=_DIGEST_BYTES).hexdigest()
            for row in _bytes(_dense(batch).reshape(len(batch), -1))]


def norm(tensor: torch.Tensor) -> float:
    """Euclidean norm, in float64."""
    return float(torch.linalg.vector_norm(_dense(tensor).double()))


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    return tensor.cpu().resolve_conj().contiguous()


def _bytes(matrix: torch.Tensor) -> Any:
    return matrix.contiguous().view(torch.uint8).numpy() if matrix.numel() else matrix.to(torch.uint8).numpy()


def first_batch(*inputs: Any) -> torch.Tensor | None:
    """The first tensor with rows among the inputs of a forward."""
    return next((tensor for tensor in tensors(inputs) if tensor.ndim), None)


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested containers, in their order."""
    if isinstance(value, torch.Tensor):
        yield value
        return
    for member in members(value) if is_container(value) else ():
        yield from tensors(member)


def place(frame: FrameType | None) -> str:
    """The innermost line of the script's own code: `train.py:31 in train`."""
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_RECIPES) or not file.startswith(_LIBRARIES):
            return f"{Path(file).name}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    return "code that is not the script's"
