"""Ranks that begin equal: the same parameters by name, shape and kind, and then the same values."""

from __future__ import annotations

from itertools import chain

import torch
from torch import nn

from rankwise.errors import MisuseError
from rankwise.group import Group

Facts = dict[str, str]


def require_same_module(module: nn.Module, group: Group) -> None:
    """Raise MisuseError, on every rank, that names what differs between the ranks' modules or cannot be shared."""
    for name, parameter in module.named_parameters():
        if isinstance(parameter, nn.UninitializedParameter):
            raise MisuseError(f"`{name}` of {type(module).__name__} has no shape yet.",
                              "The ranks cannot be given equal weights before the module has seen a batch.",
                              "Run one batch through the module before run.prepare.")
    for name, layer in module.named_modules():
        if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)) and layer.sparse:
            raise MisuseError(f"`{name}` of {type(module).__name__} has sparse gradients.",
                              "Gradients are averaged over the ranks in dense buckets.",
                              "Build it with sparse=False, or use --mode single.")
    everyone = group.gather_objects(_facts(module))
    for rank, theirs in enumerate(everyone):
        if theirs != everyone[0]:
            raise MisuseError(f"Ranks 0 and {rank} built different modules of the class {type(module).__name__}.",
                              f"{_difference(everyone[0], theirs, rank)}.",
                              "Build the same module on every rank: let nothing in it depend on the rank.")


def equalise(module: nn.Module, group: Group) -> None:
    """Give every rank the parameters and buffers of rank 0."""
    with torch.no_grad():
        for tensor in chain(module.parameters(), module.buffers()):
            values = tensor.detach().contiguous()
            group.broadcast(values)
            if values.data_ptr() != tensor.data_ptr():
                tensor.copy_(values)


def _facts(module: nn.Module) -> Facts:
    parameters = {name: f"{_kind(tensor)}{'' if tensor.requires_grad else ', frozen'}"
                  for name, tensor in module.named_parameters()}
    return {**parameters, **{name: _kind(tensor) for name, tensor in module.named_buffers()}}


def _kind(tensor: torch.Tensor) -> str:
    return f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def _difference(first: Facts, other: Facts, rank: int) -> str:
    for name in chain(first, other):
        if first.get(name) != other.get(name):
            return f"`{name}` is {first.get(name, 'absent')} on rank 0 and {other.get(name, 'absent')} on rank {rank}"
    return f"Their {len(first)} parameters and buffers are the same, but stand in another order"
