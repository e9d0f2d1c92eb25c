"""What changes in a training when its global batch does: said, never done.

Sources: Goyal et al., Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour (2017), section 2.1 and 2.2;
Malladi et al., On the SDEs and Scaling Rules for Adaptive Gradient Algorithms (2022), section 5; McCandlish et al., An
Empirical Model of Large-Batch Training (2018), section 2; Shallue et al., Measuring the Effects of Data Parallelism on
Neural Network Training (2019), section 4 and 5.
"""

from __future__ import annotations

import math

_FEW_UPDATES = 10


def changes(measured_batch: int, planned_batch: int) -> list[str]:
    """What to know of a plan with `planned_batch` samples a step, where the training has `measured_batch`."""
    if planned_batch == measured_batch:
        return [f"The global batch stays {measured_batch}: the training is the same on any number of devices. "
                "--global-batch tells what another one would take."]
    factor = planned_batch / measured_batch
    if factor < 1:
        return [f"The global batch would be {planned_batch} instead of {measured_batch}: another training, with "
                f"{1 / factor:.3g} times as many updates an epoch. The rules below hold the other way round.",
                *_rules(factor)]
    return [
        f"The global batch would be {planned_batch} instead of {measured_batch}, {factor:.3g} times as large: another "
        f"training, which nobody but you can choose. An epoch has {factor:.3g} times fewer updates, and a schedule in "
        "steps has to be made shorter by as much.",
        *_rules(factor),
        f"A small data set suffers (yours is not counted here): one of {_FEW_UPDATES * planned_batch:,} samples, for "
        f"example, would have {_FEW_UPDATES} updates an epoch, and needs more epochs for as many updates as before.",
    ]


def _rules(factor: float) -> list[str]:
    return [
        f"SGD: the learning rate times {factor:.3g}, with a warm-up over the first epochs (linear scaling; Goyal et "
        "al. 2017). It was seen to hold up to a batch of 8,192 images, on ImageNet.",
        f"Adam and its kind: the learning rate times {math.sqrt(factor):.3g}, 1 - beta times {factor:.3g} for both "
        f"betas, epsilon by {math.sqrt(factor):.3g} (square-root scaling; Malladi et al. 2022).",
        "Neither holds for ever: above the critical batch size, which is the gradient's noise by its square and "
        "differs from training to training, a larger batch hardly saves updates (McCandlish et al. 2018). It is not "
        "measured here.",
        "Over many trainings neither rule was right for all: search the learning rate again (Shallue et al. 2019).",
    ]
