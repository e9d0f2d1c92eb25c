"""How a rank ends, in the words of its state: it returned, it failed, or it lost another rank in a collective."""

from __future__ import annotations

import sys
import traceback
from types import FrameType

from rankwise.errors import PeerError
from rankwise.pulse import PULSE
from rankwise.watchdog import recorder, stacks
from rankwise.watchdog.state import Call, Doing, RankState


def of_return(rank: int) -> RankState:
    """The training is over on this rank."""
    return RankState(rank=rank, doing=Doing.RETURNED, steps=PULSE.steps, how="ended", calls=recorder.read().calls)


def of_error(rank: int, error: BaseException) -> RankState:
    """The training of this rank was left by an exception; where, is told by its traceback."""
    record = recorder.read()
    stance = stacks.Stance([*_frames(error.__cause__), *_frames(error)], record, computes=False)
    doing, how, wait = _outcome(error), _words(error), None
    if doing is Doing.WAITS:
        wait = record.pending or next(reversed(record.calls), stance.wait or Call(what="a collective"))
    return RankState(rank=rank, doing=doing, places=stance.places, inside=stance.inside, wait=wait, calls=record.calls,
                     steps=PULSE.steps, how=how)


def _frames(error: BaseException | None) -> list[tuple[FrameType, int]]:
    """Where it was raised, innermost first."""
    return [] if error is None else list(traceback.walk_tb(error.__traceback__))[::-1]


def _outcome(error: BaseException) -> Doing:
    if is_of_peer(error):
        return Doing.WAITS
    ended_well = isinstance(error, SystemExit) and error.code in (None, 0)
    return Doing.RETURNED if ended_well else Doing.FAILED


def is_of_peer(error: BaseException) -> bool:
    """Whether another rank is the likely reason: this one lost it, or waited in vain."""
    if isinstance(error, PeerError):
        return True
    if "torch.distributed" not in sys.modules or not isinstance(error, RuntimeError):
        return False
    from rankwise.group import is_transport_error
    return is_transport_error(error)


def _words(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"ended with sys.exit({'' if error.code is None else repr(error.code)})"
    if isinstance(error, PeerError):
        return f"lost another rank ({error.truth.rstrip('.')})"
    if is_of_peer(error):
        from rankwise.group import transport_words
        return f"lost another rank ({transport_words(error)})"
    return "failed with " + "".join(traceback.format_exception_only(error)).strip().splitlines()[0][:200]
