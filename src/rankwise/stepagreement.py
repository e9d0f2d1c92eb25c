"""A step at which all ranks do something together, such as to save or to stop, agreed on while they train.

A rank that is asked at some moment, by a clock or a signal, cannot act in its next step: the others may be past it.
A collective in each step would settle it and cost each step. Here a thread beside the training does, in meetings. Steps
are counted from the start of the ranks, so that all of them count alike.

1. Whoever has a wish opens the meeting of the current number; every rank's thread sees that within a quarter second.
2. The thread first announces the meeting to its training, *then* reads the training's count of steps c, and posts the
   bound b = c + 1 + lead, with the wishes of its rank. The training first writes its count, *then* looks for a
   meeting: a step k that it ended without seeing one was counted before c was read, so k <= c < b.
3. When the bounds of all ranks are there, the step is the largest, S, the same for all who read them. A training that
   has come to its own b and does not know S yet waits for it; so nobody is past S (b <= S). `lead` is what the rank
   does in a second, so that as a rule nobody waits.
4. Every rank acts at the end of step S, and the next meeting can be opened.

Nobody waits for ever: a thread waits for no training and posts its bound at once. A rank that leaves says so after its
last post; a meeting that it did not attend is void, on every rank, for nobody can have all bounds.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from rankwise.errors import PeerError

if TYPE_CHECKING:
    from rankwise.sidechannel import SideChannel

SAVE = "save"
STOP = "stop"
NOTHING: frozenset[str] = frozenset()

_POLL_SECONDS = 0.25
_MEETING_POLL_SECONDS = 0.02
_LEAD_SECONDS = 1.0
_LEAVE_SECONDS = 1.0   # to say that this rank leaves; the store may be cut off, and the thread with it


class _Meeting:
    """One meeting, as this rank's thread and its training see it. `step` is None where the meeting is void."""

    def __init__(self) -> None:
        self.bound = 0
        self.has_bound, self.is_settled = threading.Event(), threading.Event()
        self.step: int | None = None
        self.wishes = NOTHING
        self.missing: list[int] = []
        self.problem = ""

    def settle(self, step: int | None, wishes: frozenset[str] = NOTHING) -> None:
        self.step, self.wishes = step, wishes
        self.has_bound.set()
        self.is_settled.set()


class StepAgreement:
    """What a rank asks all ranks to do, and the step at which it is due. Costs a step one look at an attribute.

    Without a `channel` the rank is alone, and its wishes are due at its next step.
    """

    def __init__(self, channel: SideChannel | None, *, limit_seconds: float) -> None:
        self._channel, self._limit_seconds = channel, limit_seconds
        self._asked: deque[str] = deque()   # safe to add to in a signal handler
        self._steps = 0
        self._meeting: _Meeting | None = None
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        if channel is not None:
            self._thread = threading.Thread(target=self._attend, args=(channel,), name="rankwise-agreement",
                                            daemon=True)
            self._thread.start()

    def ask(self, wish: str) -> None:
        """Have `wish`, a word, done by all ranks at one step soon; from any thread, or from a signal handler."""
        self._asked.append(wish)
        if self._channel is None:
            meeting = _Meeting()
            meeting.settle(0)
            self._meeting = meeting

    def due(self) -> frozenset[str]:
        """What all ranks do now; the training calls it at the end of each step, on each rank equally often.

        Raises PeerError where other ranks did not answer within the limit.
        """
        self._steps += 1
        meeting = self._meeting   # after the count is written: see above
        return NOTHING if meeting is None else self._met(meeting)

    def close(self) -> None:
        """Leave; to be called when the training takes no further step."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(_LEAVE_SECONDS)

    def _met(self, meeting: _Meeting) -> frozenset[str]:
        deadline = time.monotonic() + self._limit_seconds
        meeting.has_bound.wait(self._limit_seconds)
        if self._steps < meeting.bound and not meeting.is_settled.is_set():
            return NOTHING
        if not meeting.is_settled.wait(max(0.0, deadline - time.monotonic())) or meeting.problem:
            raise PeerError("The ranks were to agree on a step at which to save or to stop, and did not.",
                            meeting.problem or f"Of ranks {meeting.missing} nothing was heard within "
                                               f"{self._limit_seconds:.0f} s.",
                            "Look at their log files.")
        if meeting.step is not None and self._steps < meeting.step:
            return NOTHING
        self._meeting = None
        if self._channel is None:
            return _taken(self._asked)
        return meeting.wishes

    # The thread

    def _attend(self, channel: SideChannel) -> None:
        number, seen_steps, seen_at = 0, 0, time.monotonic()
        try:
            while not self._closing.wait(_POLL_SECONDS):
                now, steps = time.monotonic(), self._steps
                steps_per_second = (steps - seen_steps) / (now - seen_at)
                seen_steps, seen_at = steps, now
                if self._meeting is None and self._is_open(channel, number):
                    self._meet(channel, number, lead=int(steps_per_second * _LEAD_SECONDS))
                    number += 1
            channel.post(f"left/{channel.rank}", "")
        except ConnectionError as error:
            self._fail(f"The launcher's store does not answer ({error}).")

    def _is_open(self, channel: SideChannel, number: int) -> bool:
        if self._asked:
            channel.post(f"meeting/{number}", "")
            return True
        return channel.read(f"meeting/{number}") is not None

    def _meet(self, channel: SideChannel, number: int, lead: int) -> None:
        meeting = _Meeting()
        self._meeting = meeting
        meeting.bound = self._steps + 1 + lead   # the count is read after the meeting is announced: see above
        meeting.has_bound.set()
        channel.post(f"bound/{number}/{channel.rank}", " ".join([str(meeting.bound), *_taken(self._asked)]))
        heard: dict[int, str] = {}
        while not self._closing.is_set():
            left = _hear(channel, number, heard)
            meeting.missing = [rank for rank in range(channel.size) if rank not in heard]
            if left:
                meeting.settle(None)
                return
            if not meeting.missing:
                said = [text.split() for text in heard.values()]
                meeting.settle(max(int(bound) for bound, *_ in said), frozenset(w for _, *more in said for w in more))
                return
            time.sleep(_MEETING_POLL_SECONDS)

    def _fail(self, problem: str) -> None:
        if self._meeting is not None:
            self._meeting.problem = problem
            self._meeting.settle(None)


def _hear(channel: SideChannel, number: int, heard: dict[int, str]) -> bool:
    """Add the bounds that are there; whether a rank has left without one."""
    for rank in range(channel.size):
        if rank in heard:
            continue
        has_left = channel.read(f"left/{rank}") is not None   # asked first: what is not posted by then never will be
        text = channel.read(f"bound/{number}/{rank}")
        if text is not None:
            heard[rank] = text
        elif has_left:
            return True
    return False


def _taken(wishes: deque[str]) -> frozenset[str]:
    """The wishes so far, taken out one by one: more may be added meanwhile."""
    taken = set()
    with contextlib.suppress(IndexError):
        while True:
            taken.add(wishes.popleft())
    return frozenset(taken)
