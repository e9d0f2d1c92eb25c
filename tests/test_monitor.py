"""The log of a run: exact means over ranks, nothing that waits in a step, and lines that a person can read."""

from __future__ import annotations

import contextlib
import io
import json
import math
import re
import threading
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ranks import run_groups, run_ranks
from rankwise.errors import MisuseError
from rankwise.group import Group
from rankwise.microbatch import MicroBatch
from rankwise.monitor import Monitor
from rankwise.monitor.console import Console, number
from rankwise.monitor.meter import DeviceMeter, HostMeter
from rankwise.monitor.sinks import JsonLines
from rankwise.settings import Settings
from rankwise.world import World


class Batches:
    """A loader of so many global batches."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count


@contextlib.contextmanager
def monitor(folder: Path, **settings: Any) -> Iterator[Monitor]:
    opened = Monitor(Group(World(), torch.device("cpu")), folder, Settings(**settings))
    try:
        yield opened
    finally:
        opened.close()


def train(log: Monitor, losses: list[float], *, first_step: int = 0, rows: int = 4, count: int | None = None) -> None:
    """One epoch's body: a step for each loss, all of them means over `rows` rows."""
    loader = Batches(len(losses) if count is None else count)
    for step, loss in enumerate(losses, first_step + 1):
        log.expect(loader, MicroBatch(rows=rows, global_rows=rows))
        log.add_loss(torch.tensor(loss, dtype=torch.float64, requires_grad=True), torch.tensor(float(rows)))
        log.after_step(step)


def records(folder: Path) -> list[dict[str, Any]]:
    """The numbers of metrics.jsonl, read as strict JSON, without their time."""
    def refuse(word: str) -> None:
        raise ValueError(f"{word} is not JSON")
    lines = [json.loads(line, parse_constant=refuse) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert all(line["time"] > 1.7e9 for line in lines)
    return [{name: value for name, value in line.items() if name != "time"} for line in lines if "record" not in line]


# Means over ranks


def _uneven(group: Group, folder: Path) -> tuple[list[Any], str]:
    """Rank r computes r rows of each of 25 batches, in two micro-batches; rank 0 has none, so its means are NaN."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        log = Monitor(group, folder, Settings(log_every=10))
        with log.epoch(0, 1):
            for step in range(1, 26):
                for part in (0, 1):
                    values = _rows(group.rank, step, part)
                    log.expect(loader, MicroBatch(rows=len(values), global_rows=3 * 2, is_first=part == 0))
                    log.add_loss(values.mean(), torch.tensor(float(len(values))))
                log.after_step(step)
        log.finished()
        log.close()
    return (records(folder) if group.is_main else []), text.getvalue()


loader = Batches(25)


def _rows(rank: int, step: int, part: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng([rank, step, part]).normal(size=rank))


def test_a_logged_loss_is_the_mean_over_the_rows_of_all_ranks(tmp_path: Path) -> None:
    """Each window's loss and the epoch's are those of numpy over all rows; an empty rank's NaN is no part of them."""
    def mean(first: int, last: int) -> float:
        return float(np.concatenate([_rows(rank, step, part) for rank in range(3) for step in range(first, last + 1)
                                     for part in (0, 1)]).mean())

    (found, text), *others = run_groups(_uneven, 3, tmp_path)
    assert [line["step"] for line in found] == [10, 20, 25, 25]
    assert [line.get("loss", line.get("epoch_loss")) for line in found] == pytest.approx(
        [mean(1, 10), mean(11, 20), mean(21, 25), mean(1, 25)], abs=1e-12)
    assert f"loss {mean(1, 25):.4f}" in text
    assert [text for _, text in others] == ["", ""]


def _does_not_wait(group: Group, folder: Path) -> str:
    """Rank 1 takes part in the reduction of step 2 only when rank 0 is two steps past it."""
    log = Monitor(group, folder, Settings(log_every=2))
    store = group._store
    assert store is not None
    for step in (1, 2, 3):
        if step == 2 and not group.is_main:
            store.wait(["rank 0 is past it"])
        log.add_loss(torch.tensor(1.0), torch.tensor(1.0))
        log.after_step(step)
    if group.is_main:
        store.set("rank 0 is past it", "yes")
    log.close()
    return "done"


def test_a_step_does_not_wait_for_the_loss_of_another_rank(tmp_path: Path) -> None:
    assert run_groups(_does_not_wait, 2, tmp_path, deadline_seconds=30) == ["done", "done"]


def test_a_summed_loss_is_divided_by_its_rows(tmp_path: Path) -> None:
    with monitor(tmp_path) as log, log.epoch(0, 1):
        for step, (total, rows) in enumerate([(6.0, 4.0), (math.nan, 0.0), (3.0, 2.0)], 1):
            log.add_loss(torch.tensor(total), torch.tensor(rows), is_sum=True)
            log.after_step(step)
    assert records(tmp_path)[-1]["epoch_loss"] == 1.5


@pytest.mark.parametrize("meter", [HostMeter, DeviceMeter])
def test_both_meters_give_the_mean_over_rows(meter: Any) -> None:
    """Means, sums and empty micro-batches, more of them than there are slots, against numpy over all rows."""
    rows = [np.random.default_rng(each).normal(size=each % 5) for each in range(150)]
    under_test = meter(Group(World(), torch.device("cpu")))
    for values in rows:
        loss = torch.from_numpy(values)
        is_sum = len(values) > 2
        under_test.add(loss.sum() if is_sum else loss.mean(), torch.tensor(float(len(values))), is_sum=is_sum)
    total, amount = under_test.reduce().numbers()
    assert amount == 300
    assert total / amount == pytest.approx(float(np.concatenate(rows).mean()), abs=1e-12)
    assert under_test.reduce().numbers() == (0.0, 0.0)


def test_more_micro_batches_than_the_meter_has_slots_are_all_counted(tmp_path: Path) -> None:
    values = [float(value) for value in range(1000)]
    with monitor(tmp_path, log_every=700) as log, log.epoch(0, 1):
        train(log, values)
    assert [line.get("loss", line.get("epoch_loss")) for line in records(tmp_path)] == [349.5, 849.5, 499.5]


def test_a_loss_whose_memory_is_used_again_keeps_its_value(tmp_path: Path) -> None:
    with monitor(tmp_path) as log, log.epoch(0, 1):
        loss, amount = torch.tensor(1.0), torch.tensor(2.0)
        log.add_loss(loss, amount)
        loss.fill_(9.0)
        amount.fill_(9.0)
        log.after_step(1)
    assert records(tmp_path)[-1]["epoch_loss"] == 1.0


def test_a_loss_that_is_no_number_is_null_in_the_file_and_nan_on_the_console(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with monitor(tmp_path) as log, log.epoch(0, 1):
        train(log, [1.0, math.nan])
        log.log({"worst": math.inf}, step=2, epoch=0)
    assert records(tmp_path) == [
        {"step": 2, "epoch": 0, "loss": None, "samples_per_second": records(tmp_path)[0]["samples_per_second"]},
        {"step": 2, "epoch": 0, "worst": None}, {"step": 2, "epoch": 0, "epoch_loss": None}]
    assert "loss nan" in capsys.readouterr().out


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_no_step_makes_the_host_wait_for_a_gpu(tmp_path: Path) -> None:
    """Adding, reducing and logging device tensors runs under torch's refusal of synchronising calls."""
    device = torch.device("cuda", 0)
    log = Monitor(Group(World(), device), tmp_path, Settings(log_every=2))
    values = torch.arange(1.0, 9.0, device=device).unbind()
    amount = torch.tensor(1.0, device=device)
    with log.epoch(0, 1):
        torch.cuda.set_sync_debug_mode("error")
        try:
            for step, value in enumerate(values, 1):
                log.add_loss(value, amount)
                log.after_step(step)
                log.log({"double": value * 2}, step=step, epoch=0)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    log.close()
    assert [line["loss"] for line in records(tmp_path) if "loss" in line] == [1.5, 3.5, 5.5, 7.5]
    assert [line["double"] for line in records(tmp_path) if "double" in line] == [2.0 * step for step in range(1, 9)]
    assert records(tmp_path)[-1]["epoch_loss"] == 4.5


# A whole run


def _train(run: Any, rows: int) -> list[dict[str, Any]]:
    """A line through the origin learns to be steeper; returns what is logged when the training ends."""
    inputs = torch.linspace(-1, 1, rows, dtype=torch.float64)[:, None]
    model = torch.nn.Linear(1, 1, dtype=torch.float64)
    torch.nn.init.ones_(model.weight)
    torch.nn.init.zeros_(model.bias)
    model = run.prepare(model)
    optimizer = run.prepare(torch.optim.SGD(model.parameters(), 0.1))
    data = run.loader((inputs,), 8)
    for _ in run.epochs(2):
        for (batch,) in data:
            run.step((model(batch) - 3 * batch).square().mean(), optimizer)
        run.log(bias=model.bias.detach()[0])
    run._monitor.finished()
    run._monitor.close()
    return records(run.folder) if run.is_main else []


def test_the_log_of_a_run_is_the_same_on_one_rank_and_on_three() -> None:
    """21 rows in batches of 8: the losses are those of plain PyTorch; the last batch has slices of 2, 2 and 1."""
    weight, bias = (torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in (1.0, 0.0))
    batches = torch.linspace(-1, 1, 21, dtype=torch.float64).split(8)
    expected = []
    for _ in range(2):
        total = 0.0
        for batch in batches:
            loss = (weight * batch + bias - 3 * batch).square().mean()
            total += loss.item() * len(batch)
            for parameter, gradient in zip((weight, bias), torch.autograd.grad(loss, (weight, bias)), strict=True):
                parameter.data -= 0.1 * gradient
        expected.append((total / 21, bias.item()))
    assert expected[1][0] < 0.9 * expected[0][0]
    for world_size in (1, 3):
        found = run_ranks(_train, world_size, 21)[0]
        assert [line["epoch_loss"] for line in found if "epoch_loss" in line] == pytest.approx(
            [loss for loss, _ in expected], abs=1e-12)
        assert [line["bias"] for line in found if "bias" in line] == pytest.approx(
            [value for _, value in expected], abs=1e-12)
        assert [line["step"] for line in found if "loss" in line] == [3, 6]


# What is logged


def test_logged_numbers_are_kept_with_their_step_and_shown_with_their_epoch(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with monitor(tmp_path) as log, log.epoch(4, 10):
        train(log, [0.5, 0.25, 0.75])
        log.log({"accuracy": torch.tensor(0.5), "correct": 12, "rate": np.float32(1e-5)}, step=3, epoch=4)
    assert records(tmp_path)[1] == {"step": 3, "epoch": 4, "accuracy": 0.5, "correct": 12,
                                    "rate": float(np.float32(1e-5))}
    assert re.fullmatch(r"epoch  5/10  3/3 steps  loss 0\.5000  [\d,]+ samples/s  0\.0 s  "
                        r"accuracy 0\.5000  correct 12  rate 1\.000e-05\n", capsys.readouterr().out)


@pytest.mark.parametrize("value", ["high", torch.ones(2), np.ones(2), None, [1.0]])
def test_what_is_no_number_cannot_be_logged(tmp_path: Path, value: Any) -> None:
    with monitor(tmp_path) as log, pytest.raises(MisuseError, match="numbers and 0-dim tensors"):
        log.log({"accuracy": value}, step=1, epoch=0)


def test_a_name_that_rankwise_logs_itself_is_refused(tmp_path: Path) -> None:
    with monitor(tmp_path) as log, pytest.raises(MisuseError, match="such as my_loss"):
        log.log({"loss": 1.0}, step=1, epoch=0)


class Kept:
    """A sink of a user's own."""

    def __init__(self, fails_at: int = -1) -> None:
        self.calls: list[Any] = []
        self.fails_at = fails_at

    def open(self, folder: Path, step: int) -> None:
        self.calls.append(("open", folder, step))

    def write(self, step: int, epoch: int, values: Mapping[str, float]) -> None:
        if len(self.calls) == self.fails_at:
            raise OSError("No space left on device")
        self.calls.append((step, epoch, *values))

    def close(self) -> None:
        self.calls.append("close")


def test_a_sink_is_opened_at_the_first_number_and_closed_once(tmp_path: Path) -> None:
    kept, unused = Kept(), Kept()
    with monitor(tmp_path, log_every=2) as log:
        log.sinks.append(kept)
        with log.epoch(0, 1):
            train(log, [1.0, 1.0, 1.0])
            assert kept.calls == [("open", tmp_path, 0), (2, 0, "loss", "samples_per_second")]
    assert kept.calls[2:] == [(3, 0, "loss", "samples_per_second"), (3, 0, "epoch_loss"), "close"]
    with monitor(tmp_path / "other") as log:
        log.sinks.append(unused)
    assert unused.calls == []


def test_what_a_checkpoint_goes_on_from_is_in_the_file(tmp_path: Path) -> None:
    """Numbers before a checkpoint are there also when the process is killed right after it: nobody logs them again."""
    with monitor(tmp_path, log_every=2) as log, log.epoch(0, 1):
        train(log, [1.0, 1.0, 1.0])
        log.log({"accuracy": 0.5}, step=3, epoch=0)
        log.metrics(3)
        assert [line["step"] for line in records(tmp_path)] == [2, 3, 3]
        events, = (tmp_path / "tensorboard").iterdir()
        assert b"accuracy" in events.read_bytes()


def test_a_run_that_begins_anew_in_its_folder_leaves_the_earlier_log_beside(tmp_path: Path) -> None:
    """Nothing that was logged is lost; a folder without an earlier log gets no second file."""
    for value in (1.0, 2.0):
        sink = JsonLines()
        sink.open(tmp_path, 0)
        sink.write(5, 0, {"loss": value})
        sink.close()
        assert (tmp_path / "metrics.superseded.jsonl").exists() == (value == 2.0)
    assert [json.loads(line)["loss"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [2.0]
    earlier = (tmp_path / "metrics.superseded.jsonl").read_text().splitlines()
    assert [json.loads(line)["loss"] for line in earlier] == [1.0]


def test_what_is_logged_again_at_the_step_of_the_checkpoint_is_there_once(tmp_path: Path) -> None:
    """A run killed after the evaluation that followed its last checkpoint evaluates again; each number stands once."""
    sink = JsonLines()
    sink.open(tmp_path, 0)
    for step, values in ((1, {"loss": 1.0}), (2, {"loss": 2.0}), (2, {"accuracy": 0.1}), (2, {"accuracy": 0.2})):
        sink.write(step, 0, values)
    sink.close()
    sink.open(tmp_path, 2)
    for values in ({"accuracy": 0.3}, {"accuracy": 0.4}):
        sink.write(2, 0, values)
    sink.write(3, 0, {"accuracy": 0.5})
    sink.close()
    assert [{**line, "epoch": 0} for line in records(tmp_path)] == [
        {"step": 1, "epoch": 0, "loss": 1.0}, {"step": 2, "epoch": 0, "loss": 2.0},
        *({"step": step, "epoch": 0, "accuracy": value} for step, value in ((2, 0.3), (2, 0.4), (3, 0.5)))]


def test_a_sink_that_cannot_write_is_let_go_of_and_the_training_goes_on(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    full = Kept(fails_at=2)
    with monitor(tmp_path, log_every=1) as log:
        log.sinks.insert(0, full)
        with log.epoch(0, 1):
            train(log, [1.0, 2.0, 3.0])
    assert [line["step"] for line in records(tmp_path)] == [1, 2, 3, 3]
    assert capsys.readouterr().out.count("Kept cannot write (No space left on device)") == 1
    assert full.calls[-1] == "close"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")   # of tensorboard's reader
def test_tensorboard_has_a_curve_for_each_name_and_its_thread_ends(tmp_path: Path) -> None:
    """Of many points in a short time the first and the last are there; a resumed run's curve has no second end."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    threads = threading.enumerate()
    with monitor(tmp_path, log_every=1) as log, log.epoch(0, 2):
        train(log, [float(step) for step in range(1, 101)])
        log.log({"accuracy": 0.5}, step=100, epoch=0)
    with monitor(tmp_path, log_every=1) as log:
        log.resumed(tmp_path, 0, 50, {"batch": 50, "loss": 0.0, "amount": 0.0})
        with log.epoch(0, 2):
            train(log, [7.0], first_step=50)
    assert threading.enumerate() == threads
    curves = EventAccumulator(str(tmp_path / "tensorboard"))
    curves.Reload()
    assert set(curves.Tags()["scalars"]) == {"loss", "samples_per_second", "epoch_loss", "accuracy"}
    points = [(event.step, event.value) for event in curves.Scalars("loss")]
    assert points[0] == (1, 1.0)
    assert points[-1] == (51, 7.0)
    assert [step for step, _ in points] == sorted({step for step, _ in points})


# Resuming


def test_a_resumed_log_goes_on_behind_the_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Lines behind it are superseded, a line cut by a kill goes, and the epoch's loss is over the whole epoch."""
    losses = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    with monitor(tmp_path, log_every=2) as log, contextlib.suppress(KeyboardInterrupt), log.epoch(1, 2):
        train(log, losses[:3], count=6)
        state = json.loads(json.dumps(log.state_dict()))
        train(log, [9.0, 9.0, 9.0], first_step=3, count=6)
        log._log.settle()
        raise KeyboardInterrupt
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 7, "ep')
    with monitor(tmp_path, log_every=2) as log:
        log.resumed(tmp_path / "checkpoints" / "step-000003", 1, 3, state)
        with log.epoch(1, 2):
            train(log, losses[3:], first_step=3, count=6)
    assert [line["step"] for line in records(tmp_path)] == [2, 3, 4, 6, 6]
    assert records(tmp_path)[-1]["epoch_loss"] == 3.5
    out = capsys.readouterr().out
    assert "step-000003: epoch 2, after step 3\n" in out
    assert "epoch 2/2  6/6 steps  loss 3.5000" in out


def test_breaking_out_of_the_epochs_shows_the_whole_epoch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with monitor(tmp_path) as log:
        for _ in _epochs(log, 3):
            train(log, [1.0, 2.0, 6.0])
            break
        log.finished()
    assert records(tmp_path)[-1]["epoch_loss"] == 3.0
    assert "epoch 1/3  3/3 steps  loss 3.0000" in capsys.readouterr().out


def test_a_failed_epoch_has_no_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def body(log: Monitor) -> None:
        for _ in _epochs(log, 3):
            train(log, [1.0])
            raise ValueError

    with monitor(tmp_path) as log:
        try:
            body(log)
        except ValueError as error:
            traceback.clear_frames(error.__traceback__)
        assert capsys.readouterr().out == ""


def _epochs(log: Monitor, total: int) -> Any:
    for epoch in range(total):
        with log.epoch(epoch, total):
            yield epoch


# What is shown


def test_the_first_line_says_how_the_run_is_laid_out_and_the_last_what_to_try(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "settings.json").write_text('{"target": "fashion"}')
    with monitor(tmp_path, seed=3) as log:
        log.begin("ddp", 2)
        log.exported(Path.cwd() / "weights.pth")
        log.finished()
    last = f"run folder {tmp_path}; to look at it: rankwise report {tmp_path}"
    assert capsys.readouterr().out.splitlines() == [
        f"mode ddp (chosen by auto), 2 cpu devices, seed 3, run folder {tmp_path}", "weights written to weights.pth",
        last]
    with monitor(tmp_path) as log:
        for _ in _epochs(log, 2):
            log.saved()
            break
        log.finished()
    assert capsys.readouterr().out.splitlines()[1:] == [
        f"to go on: rankwise run fashion --resume {tmp_path.name}", last]


def test_a_resumed_run_with_no_epoch_left_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with monitor(tmp_path) as log:
        log.resumed(tmp_path, 3, 12, None)
        log.finished()
    assert "no epoch was left to train" in capsys.readouterr().out


def test_a_long_epoch_has_a_plain_line_now_and_then(
        tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Console, "redraw_seconds", 0.0)
    with monitor(tmp_path, log_every=1) as log, log.epoch(0, 2):
        train(log, [1.0, 3.0, 5.0], count=4)
    lines = capsys.readouterr().out.splitlines()
    assert [line[:re.search(r"  [\d,]+ samples/s", line).start()] for line in lines] == [   # type: ignore[union-attr]
        "epoch 1/2  1/4 steps  loss -", "epoch 1/2  2/4 steps  loss 1.0000", "epoch 1/2  3/4 steps  loss 2.0000",
        "epoch 1/2  3/4 steps  loss 3.0000"]
    assert all(line.endswith(" left") for line in lines[:3])


def test_an_epoch_that_goes_through_its_loader_twice_has_no_known_length(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with monitor(tmp_path, log_every=1) as log, log.epoch(0, 1):
        train(log, [1.0, 3.0, 5.0], count=2)
    assert capsys.readouterr().out.startswith("epoch 1/1  3 steps  loss 3.0000")


def test_a_terminal_gets_a_progress_line_that_makes_room_for_what_stays(
        tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(Console, "redraw_seconds", 0.0)
    with monitor(tmp_path, log_every=1) as log:
        with log.epoch(0, 3):
            train(log, [1.0, 3.0, 5.0])
            log.print("[b] is said as it is :smile:")
        assert not log._console.is_live  # type: ignore[union-attr]
    out = capsys.readouterr().out
    for words in ("epoch 1/3  2/3 steps", "epoch 1/3  3/3 steps", "loss 2.0000", "samples/s", "left",
                  "[b] is said as it is :smile:\n"):
        assert words in out
    assert re.search(r"epoch 1/3  3/3 steps  loss 3\.0000  [\d,]+ samples/s  0\.\d s\n$", out)
    assert out.rfind("\x1b[?25h") > out.rfind("\x1b[?25l")


def test_a_closed_console_leaves_the_terminal_as_it_was(
        tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that fails in the middle of an epoch takes its progress line away."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(Console, "redraw_seconds", 0.0)
    with monitor(tmp_path) as log:
        epochs = _epochs(log, 1)
        next(epochs)
        train(log, [1.0], count=3)
        assert log._console.is_live  # type: ignore[union-attr]
    assert not log._console.is_live  # type: ignore[union-attr]
    epochs.close()
    assert capsys.readouterr().out.endswith("\x1b[2K")


def test_time_left_counts_the_epochs_to_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """After 2 of 4 batches in 2 s, with 2 more epochs: 2 s + 2 x 4 s; with finished epochs of 10 s: 2 s + 2 x 10 s."""
    from rankwise.monitor import progress
    now = [100.0]
    monkeypatch.setattr(progress.time, "perf_counter", lambda: now[0])
    for earlier, expected in (([], 10.0), ([9.0, 11.0], 22.0)):
        epoch = progress.Progress(0, 3, earlier_seconds=earlier)
        assert epoch.seconds_left is None
        data = Batches(4)
        for _ in range(2):
            epoch.expect(data, MicroBatch(rows=5, global_rows=10))
            now[0] += 1.0
            epoch.stepped()
        assert epoch.seconds_left == expected
        assert epoch.samples_per_second == 10.0


def test_batches_are_counted_on_the_first_loader_and_a_stream_has_no_total(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = iter([]), Batches(5)
    with monitor(tmp_path) as log, log.epoch(0, 1):
        for step in (1, 2):
            log.expect(first, MicroBatch(rows=1, global_rows=2))   # type: ignore[arg-type]
            log.expect(second, MicroBatch(rows=1, global_rows=2))
            log.add_loss(torch.tensor(1.0), torch.tensor(1.0))
            log.after_step(step)
    assert capsys.readouterr().out.startswith("epoch 1/1  2 steps  loss 1.0000")


@pytest.mark.parametrize(("value", "text"), [
    (0.69214, "0.6921"), (12, "12"), (12.0, "12.0000"), (1e-4, "1.000e-04"), (0.0, "0.0000"), (None, "-"),
    (math.nan, "nan"), (-math.inf, "-inf"), (123456789.0, "1.235e+08")])
def test_a_number_takes_few_characters(value: Any, text: str) -> None:
    assert number(value) == text
