"""A trial: a training that ends after some steps, and leaves what each rank measured of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rankwise import environment


@contextlib.contextmanager
def timed() -> Iterator[None]:
    """A block that runs a training script; one that does not use rankwise is timed from outside, if it is a trial."""
    file = environment.trial()
    if file is None:
        yield
        return
    from rankwise.trial.plan import TrialPlan
    plan, world = TrialPlan.read(file), environment.world()
    if not plan.is_plain or world is None:   # a Run measures itself
        yield
        return
    from rankwise.trial.plain import PlainTrial
    handle = PlainTrial(plan, world).attach()
    try:
        yield
    finally:
        handle.remove()
