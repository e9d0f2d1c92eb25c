"""Saving beside the training: of the step at which it was asked for, by steps or by the clock, and past a failing disk.

The trainings are of 3 epochs of 21 rows in batches of 8: steps of 8, 8 and 5 rows.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.optim.swa_utils import AveragedModel

import launches
from ranks import outcomes, run_ranks
from rankwise.checkpoint import folder as folders
from rankwise.checkpoint import state
from rankwise.checkpoint.snapshot import Staging
from rankwise.errors import CheckpointError

STEPS = 9


class Training:
    """A small training with momentum, a schedule and an average of the weights, and what was told of it."""

    def __init__(self, run: Any, folder: Path) -> None:
        self.run, self.told = run, []
        run._monitor.tell = self.told.append
        run._saving._checkpoints._folder = folder   # it outlives the ranks
        torch.manual_seed(0)
        self.model = run.prepare(nn.Sequential(nn.Linear(1, 6), nn.Tanh(), nn.Linear(6, 1)).double())
        self.optimizer = run.prepare(torch.optim.SGD(self.model.parameters(), 0.1, momentum=0.9))
        self.schedule = run.prepare(torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.8))
        self.average = run.prepare(AveragedModel(self.model))
        self.inputs = torch.linspace(-1, 1, 21, dtype=torch.float64)[:, None]
        self.loader = run.loader((self.inputs, self.inputs.exp()), 8, shuffle=True)

    def body(self, batch: tuple[torch.Tensor, torch.Tensor]) -> None:
        """What a person writes into the loop: the schedule and the average come after the step."""
        inputs, goals = batch
        if self.run.step((self.model(inputs) - goals).square().mean(), self.optimizer):
            self.schedule.step()
            self.average.update_parameters(self.model)

    def go(self, stop: int = STEPS, after_epoch: Callable[[int], None] = lambda epoch: None) -> Training:
        for epoch in self.run.epochs(3):
            for batch in self.loader:
                self.body(batch)
                if self.run.steps == stop and stop < STEPS:
                    return self
            after_epoch(epoch)
        return self

    @property
    def numbers(self) -> dict[str, Any]:
        return {"weights": [value.tolist() for value in self.model.state_dict().values()],
                "average": [value.tolist() for value in self.average.state_dict().values()],
                "rate": self.schedule.get_last_lr(), "steps": self.run.steps}

    def finish(self) -> dict[str, Any]:
        self.run.finish()
        return {**self.numbers, "told": "\n".join(self.told)}


def steps_in(folder: Path) -> list[int]:
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]
    for checkpoint in folders.steps_of(folder).values():
        folders.require_sound(checkpoint)
    return sorted(folders.steps_of(folder))


class Gate:
    """Holds the writer up until it is opened."""

    def __init__(self) -> None:
        self._open, self._write = threading.Event(), state.write

    def __enter__(self) -> Gate:
        state.write = self._write_behind
        return self

    def open(self) -> None:
        self._open.set()

    def _write_behind(self, *args: Any) -> None:
        assert self._open.wait(30)
        self._write(*args)

    def __exit__(self, *_: object) -> None:
        self._open.set()
        state.write = self._write


# A snapshot is of its step


def _change_at_once(run: Any, folder: Path) -> dict[str, Any]:
    """Everything changes, on every rank, before a byte is written; and no rank waits for the disk."""
    training = Training(run, folder).go(stop=4)
    with Gate() as gate:
        before = training.numbers
        kept = run.save()
        with torch.no_grad():
            for value in [*training.model.state_dict().values(), *training.average.state_dict().values()]:
                value.fill_(7)
            for moments in training.optimizer.state.values():
                moments["momentum_buffer"].fill_(7)
        training.schedule.step()
        run.barrier()   # all ranks are past it
        assert not folder.exists()
        run.barrier()
        gate.open()
        run._saving._checkpoints.require_written(kept)
    return before


@pytest.mark.parametrize(("world_size", "options"), [(1, {}), (1, {"mode": "dp", "devices": 2}), (2, {}), (3, {}),
                                                     (3, {"exact": 3})])
def test_a_checkpoint_holds_the_step_at_which_it_was_asked_for(tmp_path: Path, world_size: int,
                                                               options: dict[str, Any]) -> None:
    for before in run_ranks(_change_at_once, world_size, tmp_path / "kept", **options):
        folder = tmp_path / "kept" / "step-000004"
        model, average = (load_file(folder / f"{name}.safetensors") for name in ("model", "model_2"))
        names = ("0.weight", "0.bias", "2.weight", "2.bias")
        assert model.keys() == set(names)
        assert [model[name].tolist() for name in names] == before["weights"]
        assert sorted(map(str, before["average"])) == sorted(str(value.tolist()) for value in average.values())
        rest = torch.load(folder / "state.pt", weights_only=True)
        assert rest["schedule"]["_last_lr"] == before["rate"]
        assert all((moments["momentum_buffer"] != 7).all() for moments in rest["optimizer"]["state"].values())


def _save_behind(run: Any, folder: Path) -> str:
    training = Training(run, folder)
    with Gate() as gate:
        for _ in run.epochs(3):
            for batch in training.loader:
                training.body(batch)
                if run.is_main and run.steps == 2:
                    threading.Timer(0.2, gate.open).start()   # while the second save waits
                run.save()
    return training.finish()["told"]


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_second_save_waits_for_the_first_and_says_so_once(tmp_path: Path, world_size: int) -> None:
    told = run_ranks(_save_behind, world_size, tmp_path / "kept")[0]
    assert told.count("saving waits for the disk") == 1
    assert steps_in(tmp_path / "kept") == list(range(1, STEPS + 1))


def _never_written(run: Any, folder: Path) -> dict[str, Any]:
    training = Training(run, folder)
    with Gate():
        for _ in run.epochs(1):
            for batch in training.loader:
                training.body(batch)
                if run.steps < 3:
                    run.save()
        run._saving.finish(0.1)
        told = "\n".join(training.told)
    run._saving._checkpoints._writer.wait(30)
    return {"steps": run.steps, "told": told}


def test_a_disk_that_does_not_answer_holds_nobody_up_beyond_the_limit(tmp_path: Path) -> None:
    ranks = run_ranks(_never_written, 2, tmp_path / "kept", timeout=5.0)
    assert [rank["steps"] for rank in ranks] == [3, 3]
    told = ranks[0]["told"]
    assert "step-000002 is left out: the checkpoint before was not written within 5 s" in told
    assert "step-000001 was not written within 0.1 s; no checkpoint is whole yet" in told
    assert "1 checkpoint could not be written" in told


def _end_after_save(run: Any, folder: Path, error: type[BaseException], writes_after_seconds: float) -> None:
    training = Training(run, folder).go(stop=2)
    gate = Gate().__enter__()
    timer = threading.Timer(writes_after_seconds, gate.open)
    timer.daemon = True
    timer.start()
    run.save()
    run._monitor.tell = lambda line: (folder.parent / f"told by {run.rank}").open("a").write(line + "\n")
    del training
    raise error("in the training function")


def test_a_training_that_fails_finishes_its_last_checkpoint(tmp_path: Path) -> None:
    for told in outcomes(_end_after_save, 2, tmp_path / "kept", ValueError, 1.5):
        assert "ValueError: in the training function" in told
    assert steps_in(tmp_path / "kept") == [2]
    assert "waiting for the last checkpoint to get to the disk" in (tmp_path / "told by 0").read_text()


def test_an_interrupted_training_waits_for_the_disk_for_a_moment_only(tmp_path: Path) -> None:
    for told in outcomes(_end_after_save, 2, tmp_path / "kept", KeyboardInterrupt, 50.0):
        assert "KeyboardInterrupt" in told
    assert not (tmp_path / "kept").exists()
    assert "step-000002 was not written within 1.5 s; no checkpoint is whole yet" in (
        tmp_path / "told by 0").read_text()


# Failing writes

FAILURES = {
    "no space": (errno.ENOSPC, "rankwise.checkpoint.weights.save_file"),
    "quota": (errno.EDQUOT, "torch.save"),
    "read-only": (errno.EROFS, "pathlib.Path.mkdir"),
    "permission": (errno.EACCES, "pathlib.Path.rename"),
    "input/output": (errno.EIO, "os.fsync"),
}


def _fail_meanwhile(run: Any, folder: Path, kind: str) -> dict[str, Any]:
    """Save in each step; steps 3 to 5 fail."""
    training = Training(run, folder)
    code, place = FAILURES[kind]

    def failing(*_: Any, **__: Any) -> None:
        if threading.current_thread().name == "rankwise-checkpoint":
            raise OSError(code, os.strerror(code))

    with pytest.MonkeyPatch.context() as patch:
        for _ in run.epochs(3):
            for batch in training.loader:
                training.body(batch)
                if run.steps == 3:
                    patch.setattr(place, failing)
                run.save()
                run._saving._checkpoints._writer.wait(30)
                if run.steps == 5:
                    patch.undo()
    return training.finish()


def _undisturbed(run: Any, folder: Path) -> dict[str, Any]:
    return Training(run, folder).go().numbers


@pytest.mark.parametrize("kind", FAILURES)
def test_a_failing_disk_is_told_and_the_training_goes_on(tmp_path: Path, kind: str) -> None:
    """On every rank, to the same weights; what was whole stays, and the next that can be written is."""
    expected = run_ranks(_undisturbed, 2, tmp_path / "other")[0]["weights"]
    ranks = run_ranks(_fail_meanwhile, 2, tmp_path / "kept", kind, keep_last=2)
    assert [rank["weights"] for rank in ranks] == [expected] * 2
    reason = os.strerror(FAILURES[kind][0])
    lines = [line for line in ranks[0]["told"].splitlines() if "could not be written" in line]
    assert len(lines) == 4   # three when they were noticed, and one at the end
    for line, step in zip(lines, (3, 4, 5), strict=False):
        assert f"step-00000{step} could not be written. " in line
        assert reason in line
        assert "The training goes on; the newest whole checkpoint is step-000002" in line
    assert lines[3] == "3 checkpoints could not be written; the newest whole checkpoint is step-000009"
    assert steps_in(tmp_path / "kept") == [8, 9]


def _fail_when_waited_for(run: Any, folder: Path) -> None:
    folder.parent.mkdir(exist_ok=True)
    folder.write_text("a file where the folder should be")
    Training(run, folder).go(stop=1)
    run.save(wait=True)


def test_who_waits_for_the_disk_learns_of_its_failure_on_every_rank(tmp_path: Path) -> None:
    for told in outcomes(_fail_when_waited_for, 2, tmp_path / "there" / "kept"):
        assert "CheckpointError" in told


def _fill(run: Any, folder: Path) -> dict[str, Any]:
    """Checkpoints of 80 kB in 256 kB."""
    training = Training(run, folder)
    run.prepare(nn.Linear(100, 100, dtype=torch.float64))
    for _ in run.epochs(3):
        for batch in training.loader:
            training.body(batch)
            run.save()
    return training.finish()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 kB, for who may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount, umount = shutil.which("mount") or "", shutil.which("umount") or ""
    command = [mount, "-t", "tmpfs", "-o", "size=256k", "rankwise-test", str(folder)]
    if not mount or subprocess.run(command, capture_output=True, timeout=10, check=False).returncode:
        pytest.skip("this process may not mount a file system")
    yield folder
    subprocess.run([umount, str(folder)], timeout=10, check=True)


def test_a_disk_that_is_really_full(small_disk: Path) -> None:
    """All checkpoints that fit are whole, and the numbers of the training are those of a large disk."""
    expected = run_ranks(_undisturbed, 1, small_disk.parent / "other")[0]["weights"]
    ended = run_ranks(_fill, 1, small_disk / "kept")[0]
    assert ended["weights"] == expected
    assert "No space left on device" in ended["told"]
    assert f"{STEPS - 2} checkpoints could not be written; the newest whole checkpoint is step-000002" in ended["told"]
    assert steps_in(small_disk / "kept") == [1, 2]


def _fill_read_only(run: Any, folder: Path) -> dict[str, Any]:
    """The file system turns read-only, as one does after an error of its disk, and can be written again later."""
    training = Training(run, folder)
    for _ in run.epochs(3):
        for batch in training.loader:
            training.body(batch)
            if run.steps in (3, 6):
                mode = "ro" if run.steps == 3 else "rw"
                subprocess.run([shutil.which("mount") or "", "-o", f"remount,{mode}", str(folder.parent)],
                               timeout=10, check=True)
            run.save()
            run._saving._checkpoints.settles_within(30)
    return training.finish()


def test_a_disk_that_is_really_read_only_for_a_while(small_disk: Path) -> None:
    ended = run_ranks(_fill_read_only, 1, small_disk / "kept")[0]
    assert ended["told"].count("Read-only file system") == 3
    assert "3 checkpoints could not be written; the newest whole checkpoint is step-000009" in ended["told"]
    assert steps_in(small_disk / "kept") == [1, 2, 6, 7, 8, 9]


def test_with_room_for_two_the_newest_is_always_on_the_disk(small_disk: Path) -> None:
    ended = run_ranks(_fill, 1, small_disk / "kept", keep_last=1)[0]
    assert "could not be written" not in ended["told"]
    assert steps_in(small_disk / "kept") == [STEPS]


# What is kept


def _log_and_save(run: Any, folder: Path, values: list[float]) -> str:
    training = Training(run, folder)

    def after_epoch(epoch: int) -> None:
        run.log(accuracy=values[epoch])
        run.save()
    return training.go(after_epoch=after_epoch).finish()["told"]


@pytest.mark.parametrize(("options", "expected"), [
    ({}, [3, 6, 9]), ({"keep_last": 2}, [6, 9]), ({"keep_best": "accuracy"}, [3, 9]),
    ({"keep_last": 1, "keep_best": "accuracy:min"}, [6, 9]), ({"keep_best": "loss"}, [9])])
def test_the_newest_and_the_best_are_kept(tmp_path: Path, options: dict[str, Any], expected: list[int]) -> None:
    told = run_ranks(_log_and_save, 2, tmp_path / "kept", [0.9, 0.1, 0.5], **options)[0]
    assert steps_in(tmp_path / "kept") == expected
    metrics = json.loads((tmp_path / "kept" / "step-000009" / "position.json").read_text())["metrics"]
    assert metrics["accuracy"] == 0.5
    if options.get("keep_best") == "accuracy":
        assert told.count("keep-best: a larger accuracy is better") == 1


def test_a_metric_that_no_checkpoint_has_is_told_once_with_those_there_are(tmp_path: Path) -> None:
    told = run_ranks(_log_and_save, 1, tmp_path / "kept", [0.9, float("nan"), 0.5], keep_best="acuracy:max")[0]
    assert told.count("has no acuracy (it has: loss, accuracy)") == 1
    assert steps_in(tmp_path / "kept") == [9]


def test_a_checkpoint_within_an_epoch_is_not_asked_for_the_metric_of_its_end(tmp_path: Path) -> None:
    told = run_ranks(_log_and_save, 1, tmp_path / "kept", [0.9, 0.1, 0.5], keep_best="accuracy", save_every="2")[0]
    assert "has no accuracy" not in told


def _go_on_to_step_8(run: Any, folder: Path) -> None:
    Training(run, folder).go(stop=8).finish()


def test_damaged_checkpoints_that_are_newer_count_for_nothing(tmp_path: Path) -> None:
    """The sound one that a run went on from, and those that it makes, are not taken for older than a damaged one."""
    kept = tmp_path / "kept"
    run_ranks(_log_and_save, 1, kept, [0.1, 0.2, 0.3])
    (kept / "step-000009" / "state.pt").write_bytes(b"")
    run_ranks(_go_on_to_step_8, 1, kept, save_every="1", keep_last=1)
    assert sorted(folders.steps_of(kept)) == [7, 9]
    newest, passed_over = folders.newest_sound(kept)
    assert newest == kept / "step-000007"
    assert len(passed_over) == 1


# --save-every


def _save_every(run: Any, folder: Path, resumes: bool) -> dict[str, Any]:
    training = Training(run, folder)
    if resumes:
        with torch.no_grad():
            training.model[0].weight.fill_(7)
    return training.go().finish()


@pytest.mark.parametrize(("first", "second", "options"), [
    (1, 2, {"micro_batch": 2}), (2, 2, {"micro_batch": 1}), (3, 1, {}), (2, 3, {"exact": 4})])
def test_a_run_goes_on_from_what_was_saved_by_itself_as_if_it_had_not_ended(
        tmp_path: Path, first: int, second: int, options: dict[str, Any]) -> None:
    """Saved where the loop body is over: the schedule and the average of the step are in it. Each of them goes on."""
    expected = run_ranks(_undisturbed, 1, tmp_path / "other")[0]
    run_ranks(_save_every, first, tmp_path / "kept", False, save_every="2", **options)
    assert steps_in(tmp_path / "kept") == [2, 4, 6, 8]
    for step in (8, 6):
        resumed = run_ranks(_save_every, second, tmp_path / "kept", True, **options)
        for rank in resumed:
            assert f"step-{step:06d}: epoch {step // 3 + 1 if step % 3 else step // 3}, after step {step}" in (
                resumed[0]["told"])
            assert rank["rate"] == pytest.approx(expected["rate"], rel=1e-14)
            for name in ("weights", "average"):
                for own, other in zip(rank[name], expected[name], strict=True):
                    assert torch.allclose(torch.tensor(own), torch.tensor(other), rtol=0, atol=1e-12)
        position = tmp_path / "kept" / f"step-{step:06d}" / "position.json"
        position.unlink()   # the next one goes on from the one before


def _two_updates(run: Any, folder: Path) -> None:
    """Two optimizers take turns in one body, and an evaluation stands in the middle of it."""
    training = Training(run, folder)
    other = run.prepare(nn.Linear(1, 1).double())
    second = run.prepare(torch.optim.SGD(other.parameters(), 0.1))
    for _ in run.epochs(1):
        for inputs, goals in training.loader:
            training.body((inputs, goals))
            with torch.no_grad():
                for batch, _ in run.loader((training.inputs, training.inputs), 4):
                    training.model(batch)
            run.step((other(inputs) - goals).square().mean(), second)


def test_a_body_with_two_updates_is_saved_as_a_whole(tmp_path: Path) -> None:
    """Every step asks for it, and every second is in the middle of a body."""
    run_ranks(_two_updates, 2, tmp_path / "kept", save_every="1")
    assert steps_in(tmp_path / "kept") == [2, 4, 6]


def _inside(run: Any, folder: Path) -> None:
    """The loader is made in the epoch: its position is in no checkpoint."""
    training = Training(run, folder)
    for _ in run.epochs(2):
        for batch in run.loader((training.inputs, training.inputs.exp()), 8):
            training.body(batch)


def test_a_loop_that_cannot_be_saved_in_its_middle_is_saved_at_its_end(tmp_path: Path) -> None:
    run_ranks(_inside, 2, tmp_path / "kept", save_every="2")
    assert steps_in(tmp_path / "kept") == [3, 6]


BY_CLOCK = """
import time
import torch
import rankwise as rw

def train(run):
    model = run.prepare(torch.nn.Linear(1, 1))
    optimizer = run.prepare(torch.optim.SGD(model.parameters(), 0.01))
    loader = run.loader(torch.ones(101, 1), 8)
    deadline = time.monotonic() + 60
    for _ in run.epochs(1000):
        for batch in loader:
            run.step(model(batch).square().mean(), optimizer)
            time.sleep(0.003 * (run.rank + 1))
        if run.agree(len(list(run.folder.glob("checkpoints/step-*"))) > 0 or time.monotonic() > deadline):
            break

rw.launch(train)
"""


@pytest.mark.slow
def test_by_the_clock_the_ranks_agree_on_a_step(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(BY_CLOCK)
    ended = launches.run([*launches.RANKWISE, "run", "train.py", "--devices", "2", "--mode", "ddp", "--name", "a",
                          "--save-every", "1s"], tmp_path)
    assert ended.code == 0, ended.text
    assert steps_in(tmp_path / "runs" / "a" / "checkpoints")


AGAIN = """
import torch
import rankwise as rw

def train(run, stop: int):
    model = run.prepare(torch.nn.Linear(1, 1))
    optimizer = run.prepare(torch.optim.SGD(model.parameters(), 0.01))
    loader = run.loader(torch.ones(21, 1), 8)
    for _ in run.epochs(3):
        for batch in loader:
            run.step(model(batch).square().mean(), optimizer)
            if run.steps == stop:
                raise SystemExit("taken away")

rw.launch(train)
"""


@pytest.mark.slow
def test_a_scheduler_starts_the_same_command_again(tmp_path: Path) -> None:
    """It begins, and goes on where it was; each epoch is in the log once."""
    (tmp_path / "train.py").write_text(AGAIN)
    command = [sys.executable, "train.py", "--name", "a", "--resume", "auto", "--save-every", "2"]
    first = launches.run([*command, "--stop", "6"], tmp_path)
    assert first.code == 1, first.text
    assert "resumed from" not in first.out
    again = launches.run([*command, "--stop", "0"], tmp_path)
    assert again.code == 0, again.text
    assert "step-000004: epoch 2, after step 4" in again.out
    logged = [json.loads(line) for line in (tmp_path / "runs" / "a" / "metrics.jsonl").read_text().splitlines()]
    assert [entry["step"] for entry in logged if "epoch_loss" in entry] == [3, 6, 9]


def test_by_the_clock_one_rank_saves_at_its_next_step(tmp_path: Path) -> None:
    assert run_ranks(_until_saved, 1, tmp_path / "kept", save_every="1s")[0]


def _until_saved(run: Any, folder: Path) -> bool:
    training = Training(run, folder)
    deadline = time.monotonic() + 30
    for _ in run.epochs(1_000_000):
        for batch in training.loader:
            training.body(batch)
        if folder.exists() or time.monotonic() > deadline:
            break
    training.finish()
    return bool(steps_in(folder))


class Counted:
    """An object whose state is no plain value from the third step on."""

    def __init__(self, run: Any) -> None:
        self.run = run

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.run.steps if self.run.steps < 3 else np.float64(self.run.steps)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def _prepare_counted(run: Any, folder: Path) -> None:
    training = Training(run, folder)
    run.prepare(Counted(run))
    training.go()


def test_a_state_that_is_no_plain_value_is_the_error_of_every_rank_at_once(tmp_path: Path) -> None:
    for told in outcomes(_prepare_counted, 2, tmp_path / "kept", save_every="1"):
        assert "CheckpointError: The checkpoint would hold values of the kind numpy" in told
    assert steps_in(tmp_path / "kept") == [1, 2]


# The memory for snapshots


def test_memory_is_used_again_and_what_was_taken_shares_nothing_with_the_state() -> None:
    """The same memory for the same shapes, in whatever order; names of one tensor share one; the rest is copied."""
    shared = torch.arange(6.0).view(2, 3)
    state_ = {"a": shared, "b": shared, "turned": shared.t(), "list": [torch.ones(2), 1.5, ("x", torch.zeros(2))]}
    staging = Staging()
    first = staging.take(state_)
    assert first["a"] is first["b"]
    assert first["turned"].tolist() == shared.t().tolist()
    shared.fill_(9)
    state_["list"][0].fill_(9)
    assert first["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert first["list"][0].tolist() == [1, 1]
    places = {first["a"].data_ptr(), first["turned"].data_ptr(), first["list"][0].data_ptr(),
              first["list"][2][1].data_ptr()}
    assert len(places) == 4
    second = staging.take({"turned": shared.t(), "list": [torch.zeros(2), torch.zeros(2)], "a": shared})
    assert {each.data_ptr() for each in (second["a"], second["turned"], *second["list"])} == places
    assert second["a"].tolist() == [[9, 9, 9], [9, 9, 9]]


def test_no_memory_for_a_snapshot_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:113] DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(torch, "empty_like", refuse)
    with pytest.raises(CheckpointError, match="finds no memory"):
        Staging().take({"a": torch.ones(2)})


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_snapshot_of_a_device_is_of_its_moment() -> None:
    state_ = {"large": torch.full((1 << 24,), 3.0, device="cuda"), "small": torch.full((2,), 3.0, device="cuda"),
              "host": torch.ones(2)}
    staging = Staging()
    for _ in range(2):
        taken = staging.take(state_)
        state_["large"].fill_(7)
        assert taken["large"].is_pinned()
        assert bool((taken["large"] == 3).all())
        state_["large"].fill_(3)
