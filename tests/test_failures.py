"""How a launch ends when a rank fails, hangs, leaves early or is interrupted: one message, an exit code, no process."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path

import pytest

import rankwise as rw
from launches import RANKWISE, Launch, run, wait_for
from rankwise.errors import MisuseError, PeerError
from rankwise.launcher import streams, supervisor
from rankwise.launcher.agent import run_target
from rankwise.launcher.failure import Failure, first, hide_our_frames
from rankwise.launcher.lastwords import recorded
from rankwise.launcher.signals import Notice, Terminated, handled
from rankwise.launcher.supervisor import supervise
from rankwise.launcher.target import resolve
from rankwise.settings import Settings

pytestmark = pytest.mark.timeout(300)   # several whole interpreters each

TRAIN = '''
import os
import signal
import time
import rankwise as rw

def train(run: rw.Run, how: str = "well") -> None:
    run.barrier()
    if run.rank == 1 and how == "raises":
        raise ValueError("the data is upside down")
    if run.rank == 1 and how == "misuses":
        raise rw.errors.UsageError("The batch is blue.", "Batches are green.", "Paint it.")
    if run.rank == 1 and how == "returns":
        return
    if run.rank == 1 and how == "hangs":
        time.sleep(600)
    if run.rank == 1 and how == "is killed":
        print("a last word", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    run.barrier()
    run.barrier()

if __name__ == "__main__":
    rw.launch(train)
'''

STUBBORN = """
import os, signal, subprocess, sys, time
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open(f"ready{os.environ['RANK']}", "w").close()
while True:
    time.sleep(1)
"""


Trained = Callable[..., tuple[int, str]]


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Trained:
    """What `rankwise run` does with two ranks of which the second does something: exit code and terminal's errors."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TRAIN)

    def train(how: str, timeout: float = 60.0) -> tuple[int, str]:
        settings = Settings(devices=2, accelerator="cpu", threads=1, name="it", timeout=timeout)
        code = run_target(resolve("train.py"), ["--how", how], settings)
        return code, capfd.readouterr().err

    return train


def test_a_rank_that_raises_is_shown_first(tmp_path: Path) -> None:
    """Its traceback comes first, from the user's own line on, then whose it was and where the log files are."""
    (tmp_path / "train.py").write_text(TRAIN)
    ended = run([*RANKWISE, "run", "train.py", "--devices", "2", "--accelerator", "cpu", "--name", "it", "--", "--how",
                 "raises"], tmp_path)
    code, errors, log = ended.code, ended.err, (tmp_path / "runs" / "it" / "logs" / "rank1.log").read_text()
    assert code == 1
    lines = errors.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "train.py" in lines[1]
    assert "ValueError: the data is upside down" in lines
    assert lines[-2:] == ["Rank 1 of 2 failed: ValueError: the data is upside down",
                          "  Log files of all ranks: runs/it/logs"]
    assert "rankwise/launch" not in errors
    assert "Rank 0" not in errors
    assert "ValueError: the data is upside down" in log


def test_a_message_of_rankwise_comes_without_a_traceback(trained: Trained) -> None:
    """A UsageError on one rank is its three parts and the exit code 2; a run that never began leaves no folder."""
    code, errors = trained("misuses")
    assert code == 2
    assert errors.splitlines() == ["The batch is blue.", "  Batches are green.", "  Paint it.", "",
                                   "Rank 1 of 2 failed: UsageError"]
    assert not Path("runs").exists()


def test_a_rank_that_returns_early_is_named(trained: Trained) -> None:
    """The rank that waits says that the other has ended, and after which step."""
    code, errors = trained("returns")
    assert code == 1
    assert "Rank 1, step 0: ended." in errors
    assert "Uneven number of steps: rank 1 ended after step 0, and rank 0 went on." in errors
    assert errors.count("did not come") == 1
    assert "Traceback" not in errors


def test_a_rank_that_hangs_is_named_within_the_time_limit(trained: Trained) -> None:
    """Within --timeout the waiting rank says where it waited, and where the other is instead."""
    code, errors = trained("hangs", timeout=3.0)
    assert code == 1
    assert "Rank 0 waited in run.barrier()" in errors
    line = 1 + TRAIN.splitlines().index("        time.sleep(600)")
    assert f"Rank 1, step 0: working at train.py:{line} in train" in errors
    assert "Traceback" not in errors


def test_a_killed_rank_is_told_with_the_end_of_its_log(trained: Trained) -> None:
    """A rank that the system killed has no traceback: its signal and the last lines of its log say what is known."""
    code, errors = trained("is killed")
    assert code == 1
    assert "Rank 1 of 2 failed: It was killed by signal SIGKILL. The system may have run out of memory." in errors
    assert "a last word" in errors


def stubborn(folder: Path) -> Launch:
    """Two ranks, under way, that ignore every polite signal, each with a child of its own."""
    (folder / "stubborn.py").write_text(STUBBORN)
    launch = Launch([*RANKWISE, "run", "stubborn.py", "--devices", "2", "--accelerator", "cpu", "--max-restarts", "2"],
                    folder)
    wait_for([folder / "ready0", folder / "ready1"])
    assert len(launch.processes()) == 5
    return launch


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_an_interrupt_ends_every_process(tmp_path: Path, number: signal.Signals) -> None:
    """Ranks that ignore the signal, and their children, are gone within a few seconds; one line, exit code 130.

    That they ended is no failure: none is started again.
    """
    launch = stubborn(tmp_path)
    launch.process.send_signal(number)
    ended = launch.ended(deadline_seconds=8)
    assert ended.code == 130, ended.text
    assert ended.err.splitlines() == ["rankwise: interrupted; every rank has ended."]


def test_an_interrupted_bare_script_ends_its_ranks(tmp_path: Path) -> None:
    """`python train.py` that launched ranks ends them on Ctrl-C, each when it has tidied up, without a traceback."""
    waits = """open(f'ready{run.rank}', 'w')
    try:
        time.sleep(99)
    finally:
        time.sleep(run.rank * 1.0)
        open(f'tidied{run.rank}', 'w')
"""
    (tmp_path / "train.py").write_text(TRAIN.replace("run.barrier()", waits, 1))
    launch = Launch([sys.executable, "train.py", "--devices", "2", "--accelerator", "cpu", "--max-restarts", "2"],
                    tmp_path)
    wait_for([tmp_path / "ready0", tmp_path / "ready1"])
    launch.process.send_signal(signal.SIGINT)
    ended = launch.ended(deadline_seconds=8)
    assert (ended.code, ended.err) == (130, "")
    assert (tmp_path / "tidied0").exists()
    assert (tmp_path / "tidied1").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a rank looks after its launcher once a second")
def test_a_killed_launcher_leaves_no_rank(tmp_path: Path) -> None:
    """kill -9 of the launcher takes the ranks with it."""
    launch = stubborn(tmp_path)
    ranks = [process for process in launch.processes() if "worker" in " ".join(process.cmdline())]
    assert len(ranks) == 2
    launch.process.kill()
    deadline = time.monotonic() + 5
    while any(process.is_running() for process in ranks) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(process.is_running() for process in ranks)
    launch.end_all()   # what the ranks themselves had started
    launch.process.communicate(timeout=10)


# Parts


def test_the_cause_is_the_earliest_failure_that_no_other_explains() -> None:
    """A rank whose peer was lost is not the cause, even where it was the first to say so."""
    failures = {0: Failure(summary="lost its peer", text="", follows=True, time_seconds=1.0),
                1: Failure(summary="late", text="", time_seconds=3.0),
                2: Failure(summary="cause", text="", time_seconds=2.0)}
    assert first(failures) == 2
    assert first({0: failures[0]}) == 0


def test_what_a_failure_is_taken_for() -> None:
    """A lost peer follows from another failure, as gloo's own words do; other errors stand for themselves."""
    import torch.distributed  # noqa: F401 (gloo's words count where it is loaded)
    assert Failure.of(PeerError("a", "b", "c")).follows
    assert Failure.of(RuntimeError("[../gloo/transport/tcp/pair.cc:553] Connection closed by peer")).follows
    assert not Failure.of(RuntimeError("size mismatch")).follows
    assert Failure.of(MisuseError("Given.", "Truth.", "Remedy.")).text == "Given.\n  Truth.\n  Remedy."
    assert Failure.of(SystemExit("no data")).text == "no data"


def test_python_shows_the_users_frames_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                             capsys: pytest.CaptureFixture[str]) -> None:
    """In one process too, an exception of the training function is printed without the frames of the launch."""
    def train(run: rw.Run) -> None:
        raise ValueError("the data is upside down")

    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    hide_our_frames()
    with pytest.raises(ValueError, match="upside down") as caught:
        rw.launch(train, arguments={}, devices=1, accelerator="cpu", runs=str(tmp_path))
    assert any("rankwise" in str(entry.path) for entry in caught.traceback)
    sys.excepthook(caught.type, caught.value, caught.tb)
    shown = capsys.readouterr().err
    assert 'raise ValueError("the data is upside down")' in shown
    assert str(Path(rw.__file__).parent) not in shown


def test_how_a_process_ended_is_told(tmp_path: Path) -> None:
    """Exit codes and signals have words; a usage error of a plain script keeps its exit code 2; a rank that the agent
    stopped is never the cause."""
    five, usage, crash, stopped = (Failure.of_process(code, {}, 1.0, tmp_path / "log") for code in (5, 2, -11, -15))
    assert five.summary == "It ended with exit code 5."
    assert (five.exit_code, usage.exit_code, crash.exit_code) == (1, 2, 1)
    assert crash.summary == "It was killed by signal SIGSEGV."
    assert first({0: stopped, 1: Failure(summary="lost its peer", text="", follows=True, time_seconds=2.0)}) == 1


def test_the_first_word_of_a_rank_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a rank leaves is in the format of torch's agent, and a later failure of its clean-up does not replace it."""
    file = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(file))
    for text in ("cause", "of the clean-up"):
        with pytest.raises(ValueError, match=text), recorded():
            raise ValueError(text)
    left = json.loads(file.read_text())
    assert left["message"]["message"] == "ValueError: cause"
    assert int(left["message"]["extraInfo"]["timestamp"]) > 0
    read = Failure.of_process(1, left, 0.0, tmp_path / "none.log")
    assert read.summary == "ValueError: cause"
    assert "in test_the_first_word_of_a_rank_stands" in read.text


def test_a_log_keeps_what_a_terminal_shows(tmp_path: Path) -> None:
    """A progress line that was drawn over stands in the log once, without colours; the terminal gets all of it."""
    shown = tmp_path / "terminal"
    with shown.open("w") as terminal, (tmp_path / "log").open("w") as log:
        copied = streams.Copied(terminal, log)
        for text in ("\x1b[1mstart\x1b[0m\n", "step 1", "\r\x1b[2Kstep 2", "\r\x1b[2Kstep 3\n", "end\r\n", "open"):
            assert copied.write(text) == len(text)
        assert copied.isatty() is False
    assert (tmp_path / "log").read_text().splitlines() == ["start", "step 3", "end"]
    assert "\x1b[2Kstep 2" in shown.read_bytes().decode()


def test_a_report_replaces_a_broken_off_progress_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal the line is removed first; a file gets no codes."""
    for is_terminal, expected in ((True, "\r\x1b[2K"), (False, "")):
        shown = io.StringIO()
        monkeypatch.setattr(shown, "isatty", lambda is_terminal=is_terminal: is_terminal)
        monkeypatch.setattr(sys, "stdout", shown)
        streams.clear_line()
        assert shown.getvalue() == expected


def test_signals_are_as_before_after_a_launch() -> None:
    """Within the block SIGTERM interrupts; afterwards the handlers are those of before."""
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    with pytest.raises(Terminated), handled(Notice()):
        signal.raise_signal(signal.SIGTERM)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


class Unanswered:
    """An agent whose ranks have ended, and that waits for machines that do not answer."""

    def __init__(self) -> None:
        self.answered = threading.Event()

    def run(self) -> None:
        self.answered.wait(30)

    def get_worker_group(self) -> types.SimpleNamespace:
        beyond_every_process_id = 2 ** 22 + 1
        return types.SimpleNamespace(workers=[types.SimpleNamespace(id=beyond_every_process_id, local_rank=0)])


class Outstayed(Unanswered):
    """An agent that waits for rank 1, a process that does not end by itself; rank 0 has ended."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        super().__init__()
        self.process = process

    def run(self) -> types.SimpleNamespace:
        self.process.wait(30)
        return types.SimpleNamespace(is_failed=lambda: False)

    def get_worker_group(self) -> types.SimpleNamespace:
        ranks = super().get_worker_group().workers
        return types.SimpleNamespace(workers=[*ranks, types.SimpleNamespace(id=self.process.pid, local_rank=1)])


def test_a_rank_that_outstays_a_failed_one_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a moment to tidy up, a rank that does not end when another has failed is killed."""
    monkeypatch.setattr(supervisor, "_TIDY_SECONDS", 0.0)
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    supervise(Outstayed(process), limit_seconds=60, has_failed=lambda rank: rank == 0)  # type: ignore[arg-type]
    assert process.returncode == -signal.SIGKILL


def test_a_launcher_does_not_wait_for_lost_machines_for_ever() -> None:
    """When the ranks here have ended and the other launchers do not answer, the time limit names them."""
    agent = Unanswered()
    try:
        with pytest.raises(PeerError, match=r"the launchers of the others did not answer within 0 s"):
            supervise(agent, limit_seconds=0.2)  # type: ignore[arg-type]
    finally:
        agent.answered.set()
