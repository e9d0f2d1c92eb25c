"""The sum over virtual shards of some tensors: a rank adds its own, one by one, then the ranks put theirs together."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rankwise.group import Group
from rankwise.orderfree.cargo import Cargo, Floats, Integers
from rankwise.orderfree.exchange import put_together
from rankwise.orderfree.fixedpoint import Grids
from rankwise.orderfree.planes import Planes, Term


class ShardSum:
    """Sums of tensors like `like`, all of one dtype, over `shards` shards that lie on the ranks of `group` in any way.

    A shard may lack some of the tensors; they count as zeros, and a tensor that every shard lacks has no sum. Where
    each rank has at most one shard it is kept as it is, 4 bytes a float32; else the sum so far is held as integers, 8
    bytes.
    """

    def __init__(self, group: Group, shards: int, like: Sequence[torch.Tensor]) -> None:
        self._group, self._grids, self._like = group, Grids(shards), list(like)
        self.odd: list[int] = []
        """Which tensors of the latest total have something that is not finite."""
        self._one_each = 1 < group.size == shards
        self.clear()

    def clear(self) -> None:
        """Begin anew."""
        self._terms: list[Term | None] = [None] * len(self._like)
        self._planes: list[Planes | None] = [None] * len(self._like)

    def add(self, tensors: Sequence[torch.Tensor | None]) -> None:
        """One shard's tensors, None for those that it lacks."""
        for index, term in _terms(tensors):
            if self._one_each:
                self._terms[index] = term
                continue
            planes = self._planes[index]
            if planes is None:
                planes = self._planes[index] = Planes(self._grids)
            planes.add(term)

    def total(self) -> list[torch.Tensor | None]:
        """The sums over all ranks, the same bits on each, of the dtype and shapes of `like`; then begin anew.

        Every rank calls it.
        """
        terms, planes = self._terms, self._planes
        self.clear()
        with self._group.explained("the exact sum of the gradients"):
            cargo: Cargo = (Floats(terms, self._like, self._grids, self._group) if self._one_each
                            else Integers(planes, self._like, self._grids, self._group))
            self.odd = [index for index in range(len(self._like)) if cargo.is_odd(index)]
            return put_together(cargo, self._like, self._group)


def _terms(tensors: Sequence[torch.Tensor | None]) -> list[tuple[int, Term]]:
    """The tensors that are there, each with its place and its largest magnitude."""
    given = [(index, tensor.detach()) for index, tensor in enumerate(tensors) if tensor is not None]
    filled = [tensor for _, tensor in given if tensor.numel()]
    if not filled:
        return [(index, Term(tensor, 0.0, is_odd=False)) for index, tensor in given]
    ends = torch.stack([end.double() for tensor in filled for end in torch.aminmax(tensor)])
    magnitudes = iter(ends.abs().view(-1, 2).amax(1).tolist())
    return [(index, Term.of(tensor, next(magnitudes) if tensor.numel() else 0.0)) for index, tensor in given]
