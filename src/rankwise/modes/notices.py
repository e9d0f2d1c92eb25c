"""What in a module makes the result depend on the number of devices, said in one line."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.optim.swa_utils import AveragedModel


def layout_notices(module: nn.Module, *, synchronised: bool) -> list[str]:
    """At most one line: BatchNorm over slices differs from BatchNorm over the batch, dropout draws differ."""
    if isinstance(module, AveragedModel):
        return []
    causes = []
    if not synchronised and any(_normalises_slices(layer) for layer in module.modules()):
        causes.append("BatchNorm sees one device's slice at a time (sync_batchnorm=True: the whole batch)")
    if any(_drops(layer) for layer in module.modules()):
        causes.append("dropout draws other masks (the same in distribution)")
    if not causes:
        return []
    return [f"{type(module).__name__} on another number of devices is not the same training to the last digit: "
            f"{', and '.join(causes)}."]


def _normalises_slices(layer: nn.Module) -> bool:
    return isinstance(layer, _BatchNorm) and not isinstance(layer, nn.SyncBatchNorm)


def _drops(layer: nn.Module) -> bool:
    share = layer.p if isinstance(layer, _DropoutNd) else getattr(layer, "dropout", 0.0)
    return isinstance(share, float) and share > 0
