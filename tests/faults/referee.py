"""Injures a launch as it runs: at a moment, a victim, a signal; and takes down what each injury cost."""

from __future__ import annotations

import random
import signal
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import psutil

from launches import Launch

_LIMIT_SECONDS = 90.0   # for a moment to come, and for a run to recover


class Note(NamedTuple):
    """What a process of the training noted."""

    pid: int
    kind: str
    step: int
    at_seconds: float


class Scene:
    """A launch under way, as one sees it from outside."""

    def __init__(self, launch: Launch, folder: Path, seed: int) -> None:
        self.launcher, self.folder, self.random = psutil.Process(launch.process.pid), folder, random.Random(seed)
        self._notes, self._read_bytes = list[Note](), 0

    def notes(self) -> list[Note]:
        path = self.folder / "notes"
        if path.exists():
            with path.open("rb") as file:
                file.seek(self._read_bytes)
                new = file.read()
            whole = new[:new.rfind(b"\n") + 1]
            self._read_bytes += len(whole)
            for line in whole.decode().splitlines():
                pid, kind, step, at_seconds = line.split()
                self._notes.append(Note(int(pid), kind, int(step), float(at_seconds)))
        return self._notes

    def step(self) -> int:
        """The last step that any rank has taken."""
        return max((note.step for note in self.notes()), default=0)

    def ranks(self) -> dict[int, psutil.Process]:
        found = {}
        for child in self.launcher.children():
            try:
                found[int(child.environ()["RANK"])] = child
            except (psutil.Error, KeyError):   # it has not begun, or has ended
                continue
        return found

    def is_running(self) -> bool:
        return self.launcher.is_running() and self.launcher.status() != psutil.STATUS_ZOMBIE

    def wait(self, what: Callable[[], bool], poll_seconds: float = 0.01) -> bool:
        """Wait for a moment; False where the launch ends before it comes."""
        deadline = time.monotonic() + _LIMIT_SECONDS
        while not what():
            if not self.is_running():
                return False
            assert time.monotonic() < deadline, f"a moment did not come within {_LIMIT_SECONDS:.0f} s"
            time.sleep(poll_seconds)
        return True


Victim = Callable[[Scene], psutil.Process | None]


@dataclass(frozen=True)
class Injury:
    """`strike` waits for its moment and names the victim; None where the launch ended before."""

    name: str
    strike: Victim
    number: signal.Signals = signal.SIGKILL


@dataclass
class Outcome:
    """What an injury cost, counted from the last step before it."""

    name: str
    steps_lost: int
    seconds: float


def any_rank(scene: Scene) -> psutil.Process | None:
    """In the middle of a step."""
    time.sleep(scene.random.uniform(0.0, 0.1))
    ranks = scene.ranks()
    return scene.random.choice(list(ranks.values())) if ranks else None


def saving_rank(scene: Scene) -> psutil.Process | None:
    """Rank 0, when the temporary folder of a checkpoint is there."""
    if not scene.wait(lambda: any(scene.folder.glob("runs/*/checkpoints/.step-*")), poll_seconds=0.0005):
        return None
    return scene.ranks().get(0)


def evaluating_rank(scene: Scene) -> psutil.Process | None:
    seen = len(scene.notes())
    if not scene.wait(lambda: any(note.kind == "evaluate" for note in scene.notes()[seen:]), poll_seconds=0.002):
        return None
    pid = next(note.pid for note in scene.notes()[seen:] if note.kind == "evaluate")
    return next((rank for rank in scene.ranks().values() if rank.pid == pid), None)


def data_worker(scene: Scene) -> psutil.Process | None:
    rank = any_rank(scene)
    workers = [child for child in rank.children(recursive=True) if "resource_tracker" not in " ".join(child.cmdline())
               ] if rank else []
    return scene.random.choice(workers) if workers else None


def starting_rank(scene: Scene) -> psutil.Process | None:
    """A rank of an attempt that has not taken a step: it is killed on its way to the others."""
    first = any_rank(scene)
    if first is None:
        return None
    before = {rank.pid for rank in scene.ranks().values()}
    first.kill()
    if not scene.wait(lambda: len({rank.pid for rank in scene.ranks().values()} - before) == len(before)):
        return None
    time.sleep(scene.random.uniform(0.0, 3.0))
    return any_rank(scene)


IN_A_STEP, SAVING = Injury("a rank, in a step", any_rank), Injury("rank 0, while it saves", saving_rank)
EVALUATING = Injury("a rank, in evaluation", evaluating_rank)
DATA_WORKER = Injury("a data worker", data_worker)
STARTING = Injury("a rank, before the ranks have met", starting_rank)
STOPPED = Injury("a rank that stands still (SIGSTOP)", any_rank, signal.SIGSTOP)


@dataclass
class Referee:
    """Injures a launch again and again; `outcomes` has what each injury cost that the run had steps left after."""

    scene: Scene
    outcomes: list[Outcome] = field(default_factory=list)

    def injure(self, injuries: Sequence[Injury], new_steps: tuple[int, int] = (2, 9)) -> None:
        """Each injury some steps after the run has recovered from the one before."""
        for injury in injuries:
            goal = self.scene.step() + self.scene.random.randint(*new_steps)
            if not self.scene.wait(lambda goal=goal: self.scene.step() >= goal):
                return
            if not self._injure(injury):
                return

    def _injure(self, injury: Injury) -> bool:
        before = {note.pid for note in self.scene.notes()}
        victim = injury.strike(self.scene)
        if victim is None or not victim.is_running():
            return self.scene.is_running()
        victim.send_signal(injury.number)
        struck_seconds, reached = time.monotonic(), self.scene.step()

        def again() -> list[Note]:
            return [note for note in self.scene.notes() if note.pid not in before and note.kind == "step"]

        if not self.scene.wait(lambda: any(note.step > reached for note in again())):
            return False
        resumed = min(note.step for note in again()) - 1
        recovered_seconds = next(note.at_seconds for note in again() if note.step > reached)
        self.outcomes.append(Outcome(injury.name, max(0, reached - resumed), recovered_seconds - struck_seconds))
        return True


def table(outcomes: Sequence[Outcome]) -> str:
    """Injuries by kind: how many, the most steps lost, and the seconds to the next new step."""
    lines = [f"{'injured':38} {'times':>5} {'steps lost, most':>16} {'seconds to the next new step':>28}"]
    for name in dict.fromkeys(outcome.name for outcome in outcomes):
        own = [outcome for outcome in outcomes if outcome.name == name]
        seconds = [outcome.seconds for outcome in own]
        lines.append(f"{name:38} {len(own):5} {max(outcome.steps_lost for outcome in own):16} "
                     f"{statistics.median(seconds):14.1f} (most {max(seconds):.1f})")
    return "\n".join(lines)
