"""Asked to end (SIGTERM, SIGUSR1): ranks save at one step and end with 75; asked again, or in vain, they end anyway."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import rankwise as rw
from launches import RANKWISE, TORCHRUN, Launch, only, run, wait_for
from ranks import outcomes, run_ranks
from rankwise.errors import Preempted
from rankwise.launcher import preemption
from rankwise.launcher.signals import Notice, Terminated

pytestmark = pytest.mark.timeout(300)   # several whole interpreters each

TRAIN = """
import time
import torch
import rankwise as rw

def train(run: rw.Run, steps: int = 400, rests: str = "", last: str = "") -> float:
    torch.manual_seed(0)
    model = run.prepare(torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1)))
    optimizer = run.prepare(torch.optim.Adam(model.parameters(), lr=0.01))
    loader = run.loader(torch.linspace(0, 1, 3 * 7 * steps).reshape(-1, 3), 7, shuffle=True)
    for _ in run.epochs(1):
        for batch in loader:
            run.step(model(batch).square().mean(), optimizer)
            open(f"step{run.steps}", "w").close()
            time.sleep(float(rests or 0.02) if run.steps > 5 and not last else 0)
    run.export("final.pt")
    return 0.0

if __name__ == "__main__":
    rw.launch(train)
"""


def started(folder: Path, command: list[str], *options: str) -> Launch:
    (folder / "train.py").write_text(TRAIN)
    launch = Launch([*command, *options], folder)
    wait_for([folder / "step6"])
    return launch


def weights(folder: Path) -> dict[str, object]:
    import torch
    return {name: tensor.tolist() for name, tensor in torch.load(folder / "final.pt", weights_only=True).items()}


def rankwise(devices: int, *options: str) -> list[str]:
    return [*RANKWISE, "run", "train.py", "--devices", str(devices), "--accelerator", "cpu", "--name", "it", *options]


def asked_to_end(folder: Path, number: signal.Signals, devices: int) -> None:
    """A run that is asked to end after its sixth step saves, says so, and ends with 75."""
    launch = started(folder, rankwise(devices, "--resume", "auto"), "--", "--steps", "90")
    launch.process.send_signal(number)
    ended = launch.ended(deadline_seconds=60)
    assert ended.code == 75, ended.text
    newest = only(folder / "runs" / "it" / "checkpoints")
    assert f"asked to end: saved at step {int(newest.name[5:])}" in ended.out


def test_the_ranks_save_and_the_same_command_goes_on(tmp_path: Path) -> None:
    """The launcher ends with 75; requeued unchanged, the run goes on and ends with the bits of one left alone."""
    asked_to_end(tmp_path, signal.SIGTERM, 2)
    again = run([*rankwise(2, "--resume", "auto"), "--", "--steps", "90", "--last", "yes"], tmp_path)
    assert again.code == 0, again.text
    whole = tmp_path / "whole"
    whole.mkdir()
    (whole / "train.py").write_text(TRAIN)
    assert run([*rankwise(2), "--", "--steps", "90", "--last", "yes"], whole).code == 0
    assert weights(tmp_path) == weights(whole)


def test_the_signal_of_slurm_does_the_same(tmp_path: Path) -> None:
    """SIGUSR1, which Slurm sends before the time limit, is heard as SIGTERM is; on one device too."""
    asked_to_end(tmp_path, signal.SIGUSR1, 1)


@pytest.mark.soak
def test_ranks_of_torchrun_listen_for_themselves(tmp_path: Path) -> None:
    """torchrun passes SIGTERM on to its ranks; they save at one step."""
    launch = started(tmp_path, [*TORCHRUN, "2", "train.py", "--accelerator", "cpu", "--name", "it"])
    launch.process.send_signal(signal.SIGTERM)
    ended = launch.ended(deadline_seconds=60)
    assert ended.code != 0, "torchrun tells of the signal in its own way"
    assert only(tmp_path / "runs" / "it" / "checkpoints").name.startswith("step-")
    assert "asked to end: saved at step" in ended.out


def test_without_a_step_within_the_grace_the_run_ends_all_the_same(tmp_path: Path) -> None:
    """A training that takes no step ends with 75 after the grace, and says what there is to go on from."""
    launch = started(tmp_path, rankwise(2, "--grace-seconds", "1", "--save-every", "3"), "--", "--rests", "600")
    launch.process.send_signal(signal.SIGTERM)
    ended = launch.ended(deadline_seconds=30)
    assert ended.code == 75, ended.text
    assert "asked to end, and no step ended within 1 s. The newest checkpoint is of step 3." in ended.err
    assert only(tmp_path / "runs/it/checkpoints").name == "step-000003", "step 6 is in the body of the loop still"


def test_a_second_signal_ends_all_at_once(tmp_path: Path) -> None:
    """Whoever does not want to wait for the grace asks again."""
    launch = started(tmp_path, rankwise(2, "--save-every", "3"), "--", "--rests", "600")
    launch.process.send_signal(signal.SIGTERM)
    time.sleep(1)
    launch.process.send_signal(signal.SIGTERM)
    ended = launch.ended(deadline_seconds=10)
    assert ended.code == 130, ended.text
    assert (tmp_path / "runs/it/checkpoints/step-000003").is_dir()


BEFORE = """
import time
from rankwise.launcher.signals import ended_before_it_began
ended_before_it_began()
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_command_that_has_begun_nothing_yet_ends_with_the_same_code(number: signal.Signals) -> None:
    """A scheduler starts it again; it loads its libraries for a second or two, with no rank there to save."""
    command = subprocess.Popen([sys.executable, "-c", BEFORE], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True)
    assert command.stdout is not None
    assert command.stdout.readline() == "ready\n"
    command.send_signal(number)
    _, errors = command.communicate(timeout=20)
    assert (command.returncode, errors) == (75, "rankwise: asked to end, before the run began.\n")


# Parts


def train(run: rw.Run, rank_that_hears: int, number: int) -> tuple[int, list[str]]:
    import torch
    model = run.prepare(torch.nn.Linear(2, 1))
    optimizer = run.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
    loader = run.loader(torch.ones(7000, 2), 7)

    def steps() -> None:
        for _ in run.epochs(1):
            for batch in loader:
                run.step(model(batch).sum(), optimizer)
                if run.steps == 10 and run.rank == rank_that_hears:
                    os.kill(os.getpid(), number)
                time.sleep(0.002)

    with pytest.raises(Preempted) as caught:
        steps()
    assert caught.value.code == 75
    run.barrier()
    return run.steps, [path.name for path in (run.folder / "checkpoints").iterdir()]


@pytest.mark.parametrize("ranks", [1, 3])
def test_the_signal_of_one_rank_stops_all_at_one_step(ranks: int) -> None:
    """As when one machine of several is taken away: every rank stops at the same step, which is saved."""
    results = run_ranks(train, ranks, ranks - 1, signal.SIGTERM)
    assert len({steps for steps, _ in results}) == 1
    steps = results[0][0]
    assert 10 < steps < 1000
    assert all(found == [f"step-{steps:06d}"] for _, found in results)


class Gone:
    """A side channel whose store has ended."""

    rank = 1

    def read(self, name: str) -> str | None:
        raise ConnectionError("gone")

    def post(self, name: str, text: str) -> None:
        raise ConnectionError("gone")


class Asked:
    """An agreement that notes what it is asked for."""

    def __init__(self) -> None:
        self.wishes: list[str] = []

    def ask(self, wish: str) -> None:
        self.wishes.append(wish)


def test_a_store_that_ends_is_no_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where rank 0 keeps the store and ends first, the others are not asked to stop; a signal of their own still is."""
    monkeypatch.setattr(preemption, "_POLL_SECONDS", 0.01)
    asked = Asked()
    with preemption.heeded(asked, Gone(), grace_seconds=30, run_folder=tmp_path):   # type: ignore[arg-type]
        time.sleep(0.1)
        assert asked.wishes == []
        signal.raise_signal(signal.SIGUSR1)
        while not asked.wishes:
            time.sleep(0.01)
    assert asked.wishes == ["stop"]


def hears_twice(run: rw.Run) -> None:
    os.kill(os.getpid(), signal.SIGUSR1)
    os.kill(os.getpid(), signal.SIGUSR1)


def test_a_rank_that_hears_it_again_is_interrupted() -> None:
    answer, = outcomes(hears_twice, 1)
    assert "KeyboardInterrupt" in answer


def test_a_rank_of_our_launcher_takes_a_second_signal_for_the_same_notice(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm signals every process of a step, and the launcher passes on what it heard."""
    monkeypatch.setenv("RANKWISE_JOB", str(tmp_path / "job.json"))
    asked = Asked()
    with preemption.heeded(asked, None, grace_seconds=30, run_folder=tmp_path):   # type: ignore[arg-type]
        signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGUSR1)
        while not asked.wishes:
            time.sleep(0.01)
    assert asked.wishes == ["stop"]


def test_signals_are_as_before_when_the_run_has_ended(tmp_path: Path) -> None:
    """A rank in a program of the user's leaves its signals alone afterwards."""
    before = [signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGTERM)]

    def quiet(run: rw.Run) -> list[object]:
        return [signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGTERM)]

    during = rw.launch(quiet, arguments={}, devices=1, accelerator="cpu", runs=str(tmp_path))
    assert all(handler not in before for handler in during)
    assert [signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGTERM)] == before


def test_our_launcher_takes_a_preempted_rank_for_one_that_ended_well(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's agent would stop the others over any other code; beside it lies the word for the launcher."""
    assert preemption.exit_code() == 75
    monkeypatch.setenv("RANKWISE_JOB", str(tmp_path / "job.json"))
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error-1-0.json"))
    assert preemption.exit_code() == 0
    assert [path.name for path in tmp_path.iterdir()] == ["error-1-0.preempted"]


def test_a_notice_is_passed_on_once_and_then_is_an_interrupt() -> None:
    """A job that does not use rankwise has nothing to save, and is interrupted at once."""
    heard: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: heard.append(number))
    try:
        notice = Notice(30.0, heeded=True)
        notice.pass_on({os.getpid()})
        assert heard == []
        notice.give()
        notice.pass_on({os.getpid()})
        notice.pass_on({os.getpid()})
        assert heard == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert notice.is_given
    assert not notice.is_over
    with pytest.raises(Terminated):
        notice.give()
    with pytest.raises(Terminated):
        Notice().give()
