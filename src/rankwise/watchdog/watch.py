"""The watching thread of a rank: it sees that nothing moves any more, and has all ranks say where they stand.

The threads of all ranks take part in rounds. A rank opens a round where it has not moved for the limit, or where it
lost another rank; every rank answers with its state, and the one that opened the round judges: as long as any rank
moves there is no stall. A rank alone holds its rounds with itself. Everything goes through the store beside the
training, so that a training that waits in a collective costs nothing and hinders nobody.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rankwise import runfolder
from rankwise.pulse import PULSE
from rankwise.watchdog import ending, recorder, signs, stacks
from rankwise.watchdog.dataworkers import DataWorkers, place_in
from rankwise.watchdog.loading import is_loaded
from rankwise.watchdog.pace import Pace, children_compute
from rankwise.watchdog.report import compose
from rankwise.watchdog.state import Doing, RankState
from rankwise.world import World

if TYPE_CHECKING:
    from rankwise.sidechannel import SideChannel

_LOOK_SECONDS = 0.25
_POLL_SECONDS = 0.05      # for an answer, and for the training to begin
_TELL_SECONDS = 1.0
_ANSWER_SECONDS = 5.0    # for all ranks to answer
_VERDICT_SECONDS = 10.0   # for the rank that opened a round to judge it
_CONNECT_SECONDS = 10.0
_END_SECONDS = 1.0       # for the thread to say that this rank ends
REPORT = "report.txt"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What came out of a round: a report, whether it is one of a stall, and for how long nobody needs to ask again."""

    report: str = ""
    is_stall: bool = False
    patience_seconds: float = 0.0


class Watch:
    """Watches the training of this process, from `start` to `stop`.

    Where all ranks stand still for `stall_seconds` (0: never), `leave_word(report, is_first)` is called and then `end`,
    which ends this process, both in the watching thread; `is_first` says that this rank is the one to tell of it.
    Stacks and report are left in `folder`/stalls.
    """

    def __init__(self, world: World, folder: Path, *, stall_seconds: float,
                 leave_word: Callable[[str, bool], None], end: Callable[[], None]) -> None:
        self._world, self._folder = world, folder / runfolder.STALLS
        self._stall_seconds, self._leave_word, self._end = stall_seconds, leave_word, end
        self._is_alone = world.size == 1
        self._pace, self._data_workers = Pace(PULSE, is_alone=self._is_alone), DataWorkers()
        self._round = 0
        self._asks_again_at = 0.0
        self._told_step, self._told_at = 0, 0.0
        self._lost: RankState | None = None    # this rank, after it lost another
        self._ended: RankState | None = None
        self._report = ""
        self._is_connected = False
        self._wake, self._is_reached, self._answered = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="rankwise-watchdog", daemon=True)

    def start(self) -> None:
        self._data_workers.listen()   # before the training forks any
        self._thread.start()

    def report_of_loss(self, error: BaseException) -> str:
        """Where all ranks stand, now that this one lost another, or fails; empty where nothing can be found out."""
        if self._is_alone or not (self._is_connected or _has_process_group()):
            return ""
        if self._lost is not None:   # asked for already, on the way out of an inner block
            return self._report
        self._lost = replace(ending.of_error(self._world.rank, error), idle_seconds=self._pace.idle_seconds)
        self._wake.set()
        if not self._is_reached.wait(_ANSWER_SECONDS):   # the thread waits for the kernel, and long
            self._report = ("Rank 0's machine, which holds the store of this run, does not answer: it is lost, or this "
                            "machine is cut off from it.")
            return self._report
        self._answered.wait(_ANSWER_SECONDS + _VERDICT_SECONDS)
        return self._report

    def stop(self, state: RankState) -> None:
        """This rank ends, as `state` says; the others are told."""
        self._ended = state
        self._wake.set()
        self._thread.join(_END_SECONDS)
        if not self._thread.is_alive():
            self._data_workers.close()

    # In the watching thread

    def _run(self) -> None:
        with contextlib.suppress(ConnectionError):   # the store went with its machine, or with the run
            channel = self._connected()
            if channel is not None:
                self._watch(channel)
        self._is_reached.set()
        self._answered.set()

    def _connected(self) -> SideChannel | None:
        """The line to the other ranks, when the process group of the training is there; None where this rank ends."""
        while not is_loaded("torch"):
            if self._pause(_POLL_SECONDS):
                return None
        signs.attach(PULSE)
        while not (self._is_alone or _has_process_group()):
            if self._pause(_POLL_SECONDS):
                return None
        from rankwise.sidechannel import SideChannel
        channel = (SideChannel.in_memory() if self._is_alone
                   else SideChannel.open(self._world, limit_seconds=_CONNECT_SECONDS))
        self._is_connected = channel is not None
        self._pace = Pace(PULSE, is_alone=self._is_alone)
        return channel

    def _watch(self, channel: SideChannel) -> None:
        while self._ended is None:
            self._pace.look()
            self._tell_step(channel)
            opener = channel.read(f"stall/{self._round}")
            if opener is None and self._has_to_ask():
                opener = channel.claim(f"stall/{self._round}", str(channel.rank))
            if opener is not None:
                self._take_part(channel, is_opener=opener == str(channel.rank))
                self._round += 1
            self._pause(_LOOK_SECONDS)
        channel.post(f"ended/{channel.rank}", self._ended.to_json())

    def _tell_step(self, channel: SideChannel) -> None:
        """For the launcher, which cannot ask a rank that was killed."""
        if PULSE.steps != self._told_step and time.monotonic() - self._told_at > _TELL_SECONDS:
            self._told_step, self._told_at = PULSE.steps, time.monotonic()
            channel.post(f"step/{channel.rank}", str(self._told_step))

    def _pause(self, seconds: float) -> bool:
        """Wait until it is time to look again; True where this rank ends."""
        self._wake.wait(seconds)
        self._wake.clear()
        return self._ended is not None

    def _has_to_ask(self) -> bool:
        if self._lost is not None and not self._report:
            return True
        stands = not (PULSE.alone or PULSE.is_over) and self._pace.idle_seconds > self._stall_seconds > 0
        if not stands or time.monotonic() <= self._asks_again_at:
            return False
        return not (self._is_alone and self._takes_its_time())

    def _takes_its_time(self) -> bool:
        """Whether this rank alone waits for a person at a debugger, or for child processes that compute."""
        if not (stacks.is_debugged(stacks.of_training()) or children_compute()):
            return False
        self._pace.note()
        return True

    def _take_part(self, channel: SideChannel, *, is_opener: bool) -> None:
        own, stacks_now = self._own_state(), stacks.of_all_threads()   # after the verdict the first ranks end
        if own.doing is Doing.READS:
            of_workers = self._data_workers.stacks()
            own = replace(own, workers=tuple(sorted(set(filter(None, map(place_in, of_workers))))))
            stacks_now += "\n".join(of_workers)
        channel.post(f"state/{self._round}/{channel.rank}", own.to_json())
        self._is_reached.set()
        verdict = self._judge(channel) if is_opener else self._heard(channel)
        if verdict.report:
            self._keep(f"rank{channel.rank}.txt", stacks_now)
        if verdict.is_stall:
            if not is_opener:
                self._leave_word(verdict.report, False)
            self._end()
        elif verdict.report:
            self._report = verdict.report
            self._answered.set()
        self._asks_again_at = time.monotonic() + verdict.patience_seconds

    def _own_state(self) -> RankState:
        if self._lost is not None:
            return self._lost
        if PULSE.is_over:
            return ending.of_return(self._world.rank)
        record = recorder.Record() if PULSE.alone else recorder.read()
        stance = stacks.Stance(stacks.of_training(), record, computes=self._pace.computes)
        return RankState(rank=self._world.rank, doing=Doing.ALONE if PULSE.alone else stance.doing,
                         places=stance.places, inside=stance.inside, wait=stance.wait, calls=record.calls,
                         steps=PULSE.steps, idle_seconds=self._pace.idle_seconds)

    # The rank that opened a round

    def _judge(self, channel: SideChannel) -> Verdict:
        states = self._states(channel)
        verdict = Verdict(patience_seconds=self._patience_seconds(states))
        if self._lost is not None:
            verdict = Verdict(report=self._composed(states, f"Rank {self._lost.rank} {self._lost.how}."))
        elif self._is_stall(states):
            idle = min(state.idle_seconds for state in states if state.can_move)
            report = self._composed(states, f"The run stalled: no rank has moved for {idle:.0f} s.")
            verdict = Verdict(report=report, is_stall=True)
            self._leave_word(report, True)   # before another rank ends, which would fail this one
        channel.post(f"verdict/{self._round}", json.dumps(asdict(verdict)))
        return verdict

    def _states(self, channel: SideChannel) -> list[RankState]:
        """What every rank says of itself; a rank that ended has said so before."""
        found: dict[int, RankState] = {}
        deadline = time.monotonic() + _ANSWER_SECONDS
        while len(found) < channel.size and time.monotonic() < deadline:
            for rank in set(range(channel.size)) - found.keys():
                said = channel.read(f"ended/{rank}") or channel.read(f"state/{self._round}/{rank}")
                if said is not None:
                    found[rank] = RankState.from_json(said)
            time.sleep(_POLL_SECONDS)
        return [found.get(rank) or self._silent(channel, rank) for rank in range(channel.size)]

    def _silent(self, channel: SideChannel, rank: int) -> RankState:
        return RankState(rank=rank, doing=Doing.SILENT, steps=int(channel.read(f"step/{rank}") or 0))

    def _is_stall(self, states: list[RankState]) -> bool:
        """Whether no rank moves; the last of several may take its time, unless it waits for one that ended."""
        left = [state for state in states if not state.has_ended]
        counts = len(left) >= min(2, len(states)) or any(state.doing is Doing.WAITS for state in left)
        return counts and all(map(self._stands, states))

    def _stands(self, state: RankState) -> bool:
        return not state.can_move or (state.doing is not Doing.ALONE and state.idle_seconds > self._stall_seconds)

    def _patience_seconds(self, states: list[RankState]) -> float:
        """When the rank that moved last can have stood for the limit; work alone is left in peace for a limit more."""
        left = [self._stall_seconds - (0.0 if state.doing is Doing.ALONE else state.idle_seconds)
                for state in states if not self._stands(state)]
        return max([_LOOK_SECONDS, *left])

    def _composed(self, states: list[RankState], headline: str) -> str:
        text = compose(states, headline, self._folder)
        self._keep(REPORT, text + "\n")
        return text

    # The others

    def _heard(self, channel: SideChannel) -> Verdict:
        """What the rank that opened this round says; nothing where it is lost too: another one opens the next."""
        deadline = time.monotonic() + _VERDICT_SECONDS
        while time.monotonic() < deadline:
            said = channel.read(f"verdict/{self._round}")
            if said is not None:
                return Verdict(**json.loads(said))
            time.sleep(_POLL_SECONDS)
        return Verdict()

    def _keep(self, name: str, text: str) -> None:
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            with (self._folder / name).open("a", encoding="utf-8") as file:
                file.write(text)


def _has_process_group() -> bool:
    """Whether this process has met other ranks; torch is not loaded for the question."""
    return is_loaded("torch.distributed") and bool(sys.modules["torch.distributed"].is_initialized())
