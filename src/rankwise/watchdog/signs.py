"""Signs of progress of a training that knows nothing of rankwise: updates of the weights, and batches of a DataLoader.

Attached to torch once a process, from outside; a sign costs one addition.
"""

from __future__ import annotations

import functools
from typing import Any

from rankwise.pulse import Pulse


@functools.cache
def attach(pulse: Pulse) -> None:
    """Let each optimizer's step and each batch of a DataLoader beat. Torch is loaded already."""
    from torch.optim.optimizer import register_optimizer_step_post_hook
    from torch.utils.data import dataloader

    def updated(optimizer: Any, args: Any, kwargs: Any) -> None:
        pulse.at_step(pulse.steps + 1)

    register_optimizer_step_post_hook(updated)
    batches: Any = dataloader._BaseDataLoaderIter
    original = batches.__next__

    def counted(iterator: Any) -> Any:
        batch = original(iterator)
        pulse.beat()
        return batch

    batches.__next__ = counted
