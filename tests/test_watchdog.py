"""The parts of the watchdog: what counts as moving, where ranks parted, which cause is named, and how a round goes."""

from __future__ import annotations

import bdb
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import rankwise as rw
from rankwise.errors import PeerError
from rankwise.pulse import PULSE, Pulse
from rankwise.watchdog import ending, pace, stacks, watch
from rankwise.watchdog.cause import likely_cause
from rankwise.watchdog.dataworkers import DataWorkers, place_in
from rankwise.watchdog.pace import Pace
from rankwise.watchdog.parting import parting
from rankwise.watchdog.recorder import Record
from rankwise.watchdog.report import compose
from rankwise.watchdog.stacks import Stance
from rankwise.watchdog.state import Call, Doing, RankState
from rankwise.watchdog.watch import Watch
from rankwise.world import World

# Moving


class Clock:
    """Time as the watching thread sees it, and the processor time of the main thread."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.used = 100.0
        monkeypatch.setattr(pace.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(pace.time, "clock_gettime", lambda clock: self.used)

    def advance(self, seconds: float, used: float = 0.0) -> None:
        self.now += seconds
        self.used += used


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def after(clock: Clock, pulse: Pulse, *looks: tuple[float, float, int]) -> float:
    """Idle seconds after looks, each some seconds later, with so much computed and so many beats in between."""
    seen = Pace(pulse)
    for seconds, used, beats in looks:
        clock.advance(seconds, used)
        for _ in range(beats):
            pulse.beat()
        seen.look()
    return seen.idle_seconds


@pytest.mark.parametrize(("looks", "idle"), [
    ([(1.0, 0.0, 0)] * 4, 4.0),                          # nothing
    ([(1.0, 0.0, 0), (1.0, 0.0, 1), (1.0, 0.0, 0)], 1.0),   # a beat at the second look
    ([(1.0, 0.5, 0)] * 4, 0.0),                          # computing
    ([(1.0, 0.1, 0)] * 4, 4.0),                          # polling costs a little
    ([(1.0, 0.0, 0), (60.0, 0.0, 0), (1.0, 0.0, 0)], 2.0),  # suspended for a minute as a whole
])
def test_how_long_a_rank_has_stood(clock: Clock, looks: list[tuple[float, float, int]], idle: float) -> None:
    """Beats and computing are progress, polling is none, and the time of a suspended process does not count."""
    assert after(clock, Pulse(), *looks) == pytest.approx(idle)


def test_on_a_gpu_processor_time_is_no_progress(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its driver waits in a spin."""
    monkeypatch.setattr(pace, "_uses_gpu", lambda: True)
    assert after(clock, Pulse(), *[(1.0, 0.9, 0)] * 4) == pytest.approx(4.0)


def test_of_a_rank_alone_all_that_computes_is_progress(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for no other rank, so a spin is none of its waits."""
    monkeypatch.setattr(pace, "_uses_gpu", lambda: True)
    seen = Pace(Pulse(), is_alone=True)
    clock.advance(1.0, 0.9)
    seen.look()
    assert seen.idle_seconds == 0.0
    clock.advance(3.0, 0.1)
    seen.look()
    assert seen.idle_seconds == pytest.approx(3.0)
    seen.note()
    assert seen.idle_seconds == 0.0


@pytest.mark.parametrize(("used_seconds", "compute"), [(0.2, True), (0.05, False), (-3.0, False)])
def test_child_processes_that_compute(monkeypatch: pytest.MonkeyPatch, used_seconds: float, compute: bool) -> None:
    """A fifth of a core within half a second, of four; one that ends takes its time with it."""
    idle = [5.0, 5.0]
    used = iter([*idle, 5.0, 5.0 + used_seconds, *idle, *idle])
    monkeypatch.setattr(pace, "_seconds_of_children", lambda: next(used))
    assert pace.children_compute() is compute


# Parting


def calling(rank: int, *whats: str, first: int = 1, **more: Any) -> RankState:
    """A rank whose calls are `what@place`, numbered from `first`; it waits in the last one."""
    calls = tuple(Call(what=what.partition("@")[0], place=what.partition("@")[2], number=number)
                  for number, what in enumerate(whats, first))
    return RankState(**{"rank": rank, "doing": Doing.WAITS, "calls": calls, "wait": calls[-1] if calls else None,
                        "places": (calls[-1].place,) if calls else (), **more})


@pytest.mark.parametrize(("calls", "number", "odd", "left_out"), [
    ((["a", "b"], ["a", "b"]), None, (), None),
    ((["a", "b", "b"], ["a", "c"]), 2, (0,), None),
    ((["a", "b"], ["a", "b"], ["a", "c"]), 2, (2,), None),
    ((["r@1", "r@2", "r@1"], ["r@1", "r@1", "r@2"]), 2, (0,), (0, 1)),    # rank 1 went by the second
    ((["r@1", "b@9"], ["r@2", "b@9"]), None, (), None),                   # the branches of an `if`
    ((["r@1", "b@9", "r@1", "b@8"], ["r@2", "b@9", "r@2", "b@9"]), 3, (0,), None),
])
def test_where_ranks_parted(calls: tuple[list[str], ...], number: int | None, odd: tuple[int, ...],
                            left_out: tuple[int, int] | None) -> None:
    """The first call that differs in kind, or from which on all places differ; who is odd, and who went by it."""
    found = parting([calling(rank, *whats) for rank, whats in enumerate(calls)])
    assert (found and found.number) == number
    if found is not None:
        assert (found.odd, found.left_out) == (odd, left_out)


def test_parting_looks_at_what_all_ranks_still_know() -> None:
    """Records begin at different numbers, and a rank without one is left out."""
    states = [calling(0, "a", "b", "c", first=5), calling(1, "b", "d", first=6), RankState(rank=2, doing=Doing.SILENT)]
    found = parting(states)
    assert found is not None
    assert (found.number, set(found.calls)) == (7, {0, 1})


# Causes


def at(rank: int, doing: Doing, *places: str, **more: Any) -> RankState:
    return RankState(**{"rank": rank, "doing": doing, "places": places, "steps": 4, **more})


@pytest.mark.parametrize(("states", "name", "ranks"), [
    ([at(0, Doing.WAITS, "a"), at(1, Doing.FAILED, "b"), at(2, Doing.SILENT)], "failed", (1,)),
    ([at(0, Doing.WAITS, "a"), at(1, Doing.SILENT)], "silent", (1,)),
    ([at(0, Doing.WAITS, "a"), at(1, Doing.READS, "b"), at(2, Doing.READS, "b")], "data", (1, 2)),
    ([at(0, Doing.RETURNED), at(1, Doing.WAITS, "a")], "uneven", (0,)),
    ([at(0, Doing.WORKS, "a"), at(1, Doing.WAITS, "b"), at(2, Doing.WAITS, "b")], "alone", (0,)),
    ([at(0, Doing.WAITS, "a"), at(1, Doing.WORKS, "b"), at(2, Doing.WAITS, "a")], "branch", (1,)),
    ([at(0, Doing.WAITS, "a"), at(1, Doing.WAITS, "a"), at(2, Doing.WAITS, "b")], "branch", (2,)),
    ([calling(0, "r (float [3])@1"), calling(1, "r (float [4])@1")], "shape", (0,)),
    ([at(0, Doing.WAITS, "a"), at(1, Doing.WAITS, "a")], "network", ()),
    ([at(0, Doing.WORKS, "a"), at(1, Doing.WORKS, "b")], "unknown", ()),
])
def test_the_likely_cause(states: list[RankState], name: str, ranks: tuple[int, ...]) -> None:
    """What the ranks say decides, the most certain first; also without torch's record of collectives."""
    cause = likely_cause(states)
    assert (cause.name, cause.ranks) == (name, ranks)
    assert cause.text.endswith((".", ":"))
    assert cause.text in compose(states, "Headline.", Path("stalls"))


def test_a_report_puts_ranks_of_one_place_together() -> None:
    """One line for many ranks, with the shortest time that one of them has stood."""
    states = [at(rank, Doing.WAITS, "train.py:3 in train", wait=Call(what="barrier"), idle_seconds=9.0 + rank)
              for rank in range(12)]
    lines = compose(states, "Headline.", Path.cwd() / "runs" / "it" / "stalls").splitlines()
    assert lines[:2] == ["Headline.", "  Ranks 0, 1, 2, 3, 4, 5, 6, 7 and 4 more, step 4: waiting in barrier at "
                                      "train.py:3 in train; last progress 9 s ago."]
    assert lines[-1] == "  The stacks of all ranks: runs/it/stalls"


def test_a_state_survives_the_way_through_the_store() -> None:
    state = calling(3, "r (float [3])@train.py:1 in train", steps=7, idle_seconds=2.5, how="x", inside="y",
                    workers=("z",))
    assert RankState.from_json(state.to_json()) == state


# Where a thread stands


def test_without_a_record_an_idle_backward_is_taken_for_a_wait() -> None:
    """torch 2.7 has no record of gloo's collectives: a backward that computes nothing waits for other ranks."""
    def frames(file: str, name: str) -> list[Any]:
        code = compile(f"def {name}():\n    import sys\n    return sys._getframe()\n", file, "exec")
        space: dict[str, Any] = {}
        exec(code, space)   # noqa: S102 (a frame of a file of that name)
        return [(space[name](), 3)]

    inner = frames(str(Path(torch.__file__).parent / "autograd" / "graph.py"), "_engine_run_backward")
    outer = frames("/home/me/train.py", "train")
    waiting = Stance(inner + outer, Record(), computes=False)
    assert (waiting.doing, waiting.wait) == (Doing.WAITS, Call(what="a reduction in backward"))
    assert waiting.places == ("me/train.py:3 in train",)
    assert Stance(inner + outer, Record(), computes=True).doing is Doing.WORKS


def test_a_debugger_is_seen() -> None:
    """A person may be thinking there."""
    seen = []

    class Quiet(bdb.Bdb):
        def user_line(self, frame: Any) -> None:
            seen.append(stacks.is_debugged(stacks.of_training()))

    Quiet().run("1 + 1")
    assert set(seen) == {True}
    assert not stacks.is_debugged(stacks.of_training())


def test_how_an_error_is_told() -> None:
    """A lost rank is a wait with the transport's words, sys.exit(0) an end, anything else a failure."""
    def raised(error: BaseException) -> RankState:
        try:
            raise error
        except BaseException as caught:
            return ending.of_error(1, caught)

    lost = raised(PeerError("Waited.", "Timed out.", "Look."))
    assert (lost.doing, lost.how) == (Doing.WAITS, "lost another rank (Timed out)")
    assert (raised(SystemExit(0)).doing, raised(SystemExit(0)).how) == (Doing.RETURNED, "ended with sys.exit(0)")
    failed = raised(ValueError("upside down\nsecond line"))
    assert (failed.doing, failed.how) == (Doing.FAILED, "failed with ValueError: upside down")
    assert failed.places[0].endswith("in raised")


# Data workers


class Held(Dataset[int]):
    """Reads nothing until it is let go."""

    def __init__(self) -> None:
        self.go = multiprocessing.get_context("fork").Event()

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        self.go.wait(60)
        return index


@pytest.fixture
def heard() -> Iterator[DataWorkers]:
    hears = DataWorkers()
    hears.listen()
    yield hears
    hears.close()


def test_only_data_workers_are_asked(heard: DataWorkers) -> None:
    """Children that would die of the signal, or have the handler and are none of torch's, are left alone."""
    context = multiprocessing.get_context("fork")
    forked, other = context.Process(target=time.sleep, args=(60,)), subprocess.Popen(["/bin/sleep", "60"])
    forked.start()
    held = Held()
    reading = iter(DataLoader(held, batch_size=2, num_workers=2))
    try:
        until(lambda: sum(bool(place_in(each)) for each in heard.stacks()) == 2)
        pids = {worker.pid for worker in reading._workers}   # type: ignore[attr-defined]
        assert {int(each.split()[2]) for each in heard.stacks()} == pids
        assert all(place_in(each).endswith("in __getitem__") for each in heard.stacks())
        assert forked.is_alive()
        assert other.poll() is None
        held.go.set()
        assert [batch.tolist() for batch in reading] == [[0, 1], [2, 3]]
    finally:
        held.go.set()
        for each in (forked, other):
            each.kill()
        forked.join()
        other.wait()


def test_workers_without_the_handler_are_not_asked() -> None:
    """They were there before, or are spawned, and would die of it."""
    held = Held()
    early = iter(DataLoader(held, batch_size=2, num_workers=1))
    hears = DataWorkers()
    hears.listen()
    try:
        assert hears.stacks() == []
        held.go.set()
        assert [batch.tolist() for batch in early] == [[0, 1], [2, 3]]
    finally:
        held.go.set()
        hears.close()


def test_a_handler_of_the_user_is_left_alone() -> None:
    number, got = signal.SIGRTMAX - 1, []
    before = signal.signal(number, lambda *received: got.append(received))
    hears = DataWorkers()
    try:
        hears.listen()
        os.kill(os.getpid(), number)
        assert len(got) == 1
        assert hears.stacks() == []
    finally:
        hears.close()
        signal.signal(number, before)


def test_the_place_in_a_worker() -> None:
    """The user's frames within the reading, innermost first; below it is what the fork was called from."""
    worker = f'''Data worker 7
Thread 0x1 (most recent call first):
  File "/home/me/feed.py", line 1 in run

Current thread 0x2 (most recent call first):
  File "/home/me/\\u6570/read.py", line 9 in opened
  File "/home/me/\\u6570/train.py", line 5 in __getitem__
  File "{torch.__path__[0]}/utils/data/_utils/fetch.py", line 50 in fetch
  File "{torch.__path__[0]}/utils/data/_utils/worker.py", line 320 in _worker_loop
  File "/home/me/\\u6570/train.py", line 30 in <module>
'''
    assert place_in(worker) == "数/read.py:9 in opened, called from 数/train.py:5 in __getitem__"
    assert place_in(worker.replace("/home/me/", f"{torch.__path__[0]}/")) == ""
    assert place_in("") == ""


# Rounds


class Board:
    """A store that threads share."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.lock = threading.Lock()
        self.is_gone = False

    def claim(self, name: str, text: str) -> str:
        with self.lock:
            return self.texts.setdefault(name, text)


class Line:
    """A rank's side channel to the board."""

    def __init__(self, board: Board, rank: int, size: int) -> None:
        self.board, self.rank, self.size = board, rank, size

    def post(self, name: str, text: str) -> None:
        self.board.texts[name] = text

    def read(self, name: str) -> str | None:
        if self.board.is_gone:
            raise ConnectionError("gone")
        return self.board.texts.get(name)

    def claim(self, name: str, text: str) -> str:
        return self.board.claim(name, text)


class Fleet:
    """The watches of some ranks, as threads of this process, over one board; what each left at its end."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, size: int, stall_seconds: float) -> None:
        self.board, self.words, self.ended = Board(), dict[int, tuple[str, bool]](), set[int]()
        self.watches = [Watch(World(rank=rank, size=size), folder, stall_seconds=stall_seconds,
                              leave_word=self._word(rank), end=self._end(rank)) for rank in range(size)]
        for rank, each in enumerate(self.watches):
            monkeypatch.setattr(each, "_connected", self._connecting(each, rank, size))

    def _word(self, rank: int) -> Any:
        return lambda report, is_first: self.words.update({rank: (report, is_first)})

    def _end(self, rank: int) -> Any:
        def end() -> None:
            self.ended.add(rank)
            raise ConnectionError   # which ends the thread, as the process would
        return end

    def _connecting(self, each: Watch, rank: int, size: int) -> Any:
        def connected() -> Any:
            each._is_connected = True
            return Line(self.board, rank, size)
        return connected

    def close(self) -> None:
        for rank, each in enumerate(self.watches):
            if each._thread.ident is not None:
                each.stop(ending.of_return(rank))


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the main thread of this process computes is no progress of the ranks."""
    monkeypatch.setattr(pace, "_BUSY", 10.0)


def until(condition: Any, deadline_seconds: float = 20.0) -> None:
    deadline = time.monotonic() + deadline_seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_all_ranks_end_and_one_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, still: None) -> None:
    """Exactly one of four is the first; all have the same report, and it lies in the folder once."""
    fleet = Fleet(tmp_path, monkeypatch, 4, stall_seconds=0.5)
    for each in fleet.watches:
        each.start()
    until(lambda: fleet.ended == {0, 1, 2, 3})
    assert sorted(is_first for _, is_first in fleet.words.values()) == [False, False, False, True]
    report, = {report for report, _ in fleet.words.values()}
    assert (tmp_path / "stalls" / "report.txt").read_text().strip() == report
    assert {path.name for path in (tmp_path / "stalls").iterdir()} == {
        "report.txt", "rank0.txt", "rank1.txt", "rank2.txt", "rank3.txt"}


def test_a_round_whose_opener_is_lost_is_followed_by_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                             still: None) -> None:
    """Rank 0 opens a round and is never heard of again: the others tell of it, as of one that does not answer."""
    monkeypatch.setattr(watch, "_ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(watch, "_VERDICT_SECONDS", 1.0)
    fleet = Fleet(tmp_path, monkeypatch, 3, stall_seconds=0.5)
    fleet.board.claim("stall/0", "0")
    for each in fleet.watches[1:]:
        each.start()
    until(lambda: fleet.ended == {1, 2})
    assert "Rank 0 did not answer" in fleet.words[1][0]


def test_a_rank_that_moves_holds_the_others_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, still: None) -> None:
    """As long as one of them beats there is no stall, however long the others stand."""
    fleet = Fleet(tmp_path, monkeypatch, 3, stall_seconds=0.5)
    own = Pulse()
    monkeypatch.setattr(fleet.watches[1], "_pace", Pace(own))
    for each in fleet.watches:
        each.start()
    for _ in range(25):
        time.sleep(0.1)
        own.beat()
    assert (fleet.ended, fleet.words) == (set(), {})
    assert "verdict/0" in fleet.board.texts   # it was asked
    fleet.close()


def test_a_lost_store_ends_the_watch_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, still: None) -> None:
    """The training goes on without a watchdog; a report is not waited for."""
    fleet = Fleet(tmp_path, monkeypatch, 2, stall_seconds=60.0)
    fleet.board.is_gone = True
    fleet.watches[0].start()
    fleet.watches[0]._thread.join(5)
    assert not fleet.watches[0]._thread.is_alive()
    assert fleet.watches[0].report_of_loss(PeerError("Waited.", "Timed out.", "Look.")) == ""
    assert fleet.ended == set()


def test_a_rank_alone_stands_for_all(tmp_path: Path) -> None:
    """There are no others that have ended before; where all have, there is nothing to end."""
    guard = Watch(World(), tmp_path, stall_seconds=1.0, leave_word=lambda report, first: None, end=lambda: None)
    assert guard._is_stall([at(0, Doing.READS, "a", idle_seconds=9.0)])
    assert not guard._is_stall([at(0, Doing.READS, "a", idle_seconds=0.5)])
    assert not guard._is_stall([at(0, Doing.RETURNED), at(1, Doing.RETURNED)])


def test_a_person_at_a_debugger_has_time(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """And has the limit again when the training goes on."""
    guard = Watch(World(), tmp_path, stall_seconds=1.0, leave_word=lambda report, first: None, end=lambda: None)
    monkeypatch.setattr(pace, "_CHILDREN_SECONDS", 0.0)
    monkeypatch.setattr(PULSE, "is_over", False)
    clock.advance(4.0)
    guard._pace.look()
    assert guard._has_to_ask()
    monkeypatch.setattr(stacks, "_DEBUGGERS", (__name__,))
    assert not guard._has_to_ask()
    monkeypatch.undo()
    assert guard._pace.idle_seconds == 0.0


@pytest.mark.parametrize(("arguments", "is_typed", "is_watched"), [
    (None, False, True), ({}, False, False), (None, True, False), ({}, True, False),
])
def test_a_process_that_is_not_the_trainings_own_is_not_watched(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any] | None, is_typed: bool,
        is_watched: bool) -> None:
    """A notebook, a REPL, and whoever calls `launch` with arguments: only a script may be ended from within."""
    monkeypatch.setattr(sys, "argv", ["train.py"])
    if is_typed:
        monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)

    def train(run: rw.Run) -> bool:
        with run.alone():
            assert PULSE.alone
        return any(thread.name == "rankwise-watchdog" for thread in threading.enumerate())

    for _ in range(2):   # the second as the first
        found = rw.launch(train, arguments=arguments, accelerator="cpu", devices=1, runs=str(tmp_path))
        assert found is is_watched
        assert signal.getsignal(signal.SIGRTMAX - 1) is signal.SIG_DFL


def test_the_last_rank_under_way_may_take_its_time(tmp_path: Path) -> None:
    """Others have ended: it waits for nobody, unless it stands in a collective."""
    guard = Watch(World(rank=0, size=2), tmp_path, stall_seconds=1.0, leave_word=lambda report, first: None,
                  end=lambda: None)
    gone = at(1, Doing.RETURNED)
    assert not guard._is_stall([at(0, Doing.WORKS, "a", idle_seconds=9.0), gone])
    assert guard._is_stall([at(0, Doing.WAITS, "a", idle_seconds=9.0), gone])
    assert guard._is_stall([at(0, Doing.WORKS, "a", idle_seconds=9.0), at(1, Doing.SILENT)])
    assert not guard._is_stall([at(0, Doing.WAITS, "a", idle_seconds=9.0), at(1, Doing.ALONE, idle_seconds=9.0)])
